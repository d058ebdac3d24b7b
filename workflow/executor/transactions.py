"""The transaction of an atomic action: user code may leave it in any state, and only a whole one is committed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.pq import TransactionStatus

from workflow.conf import conf
from workflow.signals import Signal
from workflow.sql import settle as settle_sql
from workflow.sql.arrays import plain
from workflow.store.pipeline import Statement
from workflow.store.ports import DjangoPort, own_connections, refresh_connections
from workflow.store.settle import Lease, Outdated, Rejected, Settlement, settle_now
from workflow.store.trouble import driver_error, is_connection_lost

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
"""Seconds between two tries to reach a database that is away."""


class TransactionBroken(Exception):
    """A handler has left its transaction in another state than it was given it: nothing of it may be committed."""


class CheckpointRefused(Exception):
    """The checkpoint of an atomic action was refused: its transaction must not commit."""


def connect(using: str, signal: Signal) -> None:
    """A database that is away before user code is entered costs time, not an attempt. Raises `Aborted` as soon as the
    attempt is asked to stop."""
    pause = FIRST_PAUSE
    while True:
        try:
            refresh_connections(own_connections())
            connections[using].ensure_connection()
            return
        except DatabaseError as error:
            if not is_connection_lost(error):
                raise
        signal.wait(pause)
        signal.raise_if_aborted()
        pause = min(pause * 2, LONGEST_PAUSE)


def was_applied(lease: Lease, ordinal: int, number: int, *, compensating: bool) -> bool:
    """Whether the checkpoint of that attempt was committed, asked on a connection of its own: the node tells, whatever
    its neighbours have settled since."""
    question = [
        (settle_sql.LOCK_RUNS, (plain([lease.run_id]),)),
        (settle_sql.OUTCOME, (lease.node(ordinal), compensating, number)),
    ]
    pause = FIRST_PAUSE
    while True:
        try:
            connections[conf.DATABASE].close()
            return bool(DjangoPort().run_now(question)[1])
        except DatabaseError as error:
            if not is_connection_lost(error):
                raise
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)


class Blocks:
    """Which `atomic()` blocks are open on a connection, to be compared with what user code leaves.

    Django keeps them as bare stacks: whoever leaves a block takes off the top whatever it is. One that was left open
    would be taken for that of the caller, whose own transaction would then never end.
    """

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = connection
        self._savepoints = len(connection.savepoint_ids)
        self._blocks = len(connection.atomic_blocks)

    @property
    def left_open(self) -> int:
        """How many more there are than before; negative when too many were left."""
        return len(self._connection.savepoint_ids) - self._savepoints

    def leave(self) -> None:
        """Leaves those that were left open, undoing what was done inside."""
        connection = self._connection
        if self.left_open <= 0 or not connection.in_atomic_block:
            return
        savepoint = connection.savepoint_ids[self._savepoints]
        del connection.savepoint_ids[self._savepoints :]
        del connection.atomic_blocks[self._blocks :]
        if savepoint is None or connection.closed_in_transaction:
            connection.needs_rollback = True  # it has none of its own: whoever is around it goes with it
        else:
            connection.needs_rollback = False
            try:
                connection.savepoint_rollback(savepoint)
            except DatabaseError:
                connection.needs_rollback = True


class Transaction:
    """`transaction.atomic()` around a handler and its checkpoint."""

    def __init__(self, using: str) -> None:
        self.using = using
        self.outermost = not connections[using].in_atomic_block
        """False inside a transaction of the caller's, which a test's is."""
        self.committed = False
        """Whether it is, checkpoint and all."""
        self._is_complete = False
        self._blocks: Blocks | None = None
        self._is_begun = not self.outermost
        """Whether the server knows of it: psycopg sends the BEGIN with the first statement."""

    @contextmanager
    def begin(self) -> Iterator[None]:
        """The block. Leaving it without an exception means that it was committed, where it is the outermost."""
        connection = connections[self.using]
        wrappers = connection.execute_wrappers
        with transaction.atomic(using=self.using):
            self._blocks = Blocks(connection)
            if self.outermost:
                # The first of the hooks: neither the block's end nor an exception tells whether there was a commit.
                transaction.on_commit(self._note_commit, using=self.using)
                wrappers.append(self._note_begin)
            try:
                yield
            except BaseException:
                self._blocks.leave()
                raise
            finally:
                if self._note_begin in wrappers:
                    wrappers.remove(self._note_begin)
            self._is_complete = True
        if self.outermost and not self.committed:
            raise TransactionBroken("the transaction was not committed; is AUTOCOMMIT off for this database?")

    def _note_commit(self) -> None:
        self.committed = self._is_complete  # else the handler has ended the block that was begun for it

    def _note_begin(self, execute: Callable[..., Any], *statement: Any) -> Any:
        """Around the first statement only: those that come after it cost nothing."""
        connections[self.using].execute_wrappers.remove(self._note_begin)
        self._is_begun = True
        return execute(*statement)

    def require_whole(self) -> None:
        """To be asked when user code has returned."""
        assert self._blocks is not None
        connection = connections[self.using]
        if self._blocks.left_open > 0:
            raise TransactionBroken("the handler left a transaction.atomic() block open")
        raw = connection.connection
        is_idle = (
            isinstance(raw, psycopg.Connection) and raw.info.transaction_status == TransactionStatus.IDLE
        )
        if (is_idle and self._is_begun) or self._blocks.left_open < 0 or not connection.in_atomic_block:
            raise TransactionBroken(
                "the handler ended the transaction itself, by a COMMIT or a ROLLBACK: its checkpoint belongs to it"
            )

    def settle(self, settlement: Settlement) -> None:
        """Settles the checkpoint inside the transaction, or raises `CheckpointRefused` or `Rejected`."""
        try:
            if settle_now(DjangoPort(self.using), settlement, beside=True) or self._settle_by_default_path(
                settlement
            ):
                return
        except Outdated as outdated:
            raise CheckpointRefused(_CHANGED) from outdated
        except Rejected as rejected:
            if not _is_about_names(rejected) or not self._settle_by_default_path(settlement):
                raise
            return
        raise CheckpointRefused(_CHANGED)

    def _settle_by_default_path(self, settlement: Settlement) -> bool:
        """Once more where names mean what they do on the engine's own connections, if the handler has set another
        `search_path`. What comes after it (triggers that are deferred to the commit) has the handler's again.
        """
        port = DjangoPort(self.using)
        (((path,),), ((default,),)) = port.run_now([_PATH, _DEFAULT_PATH])
        try:
            return path != default and settle_now(port, settlement, beside=True)
        finally:
            if not connections[self.using].needs_rollback:
                port.run_now([("SELECT set_config('search_path', %s, true)", (path,))])


_CHANGED = (
    "the run was cancelled or changed in the action's own transaction, which is undone; or its lease was lost"
)
_PATH: Statement = ("SELECT current_setting('search_path')", ())
_DEFAULT_PATH: Statement = ("SELECT set_config('search_path', NULL, true)", ())


def _is_about_names(rejected: Rejected) -> bool:
    """Whether a table, column or function was not there under its name."""
    return str(getattr(driver_error(rejected), "sqlstate", None)).startswith("42")
