"""Identifiers: UUIDv7, so that rows made together lie together, and node ids that need no look-up.

A run's id ends in twenty zero bits; a node's id is its run's with the node's ordinal there. In the canonical
text these are the last five hexadecimal digits, so either id can be told from the other without a query.
Ordinal 0 is the run itself.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from threading import Lock
from uuid import UUID

ORDINAL_BITS = 20
MAX_ORDINAL = (1 << ORDINAL_BITS) - 1

_ORDINAL_DIGITS = ORDINAL_BITS // 4
_RANDOM_BITS = 74  # of a UUIDv7: 12 beside the version, 62 after the variant
_VERSION = 0x7 << 76
_VARIANT = 0b10 << 62
_LOW_62 = (1 << 62) - 1
_MAX_BACKWARD_MS = 10_000


class _Sequence:
    """UUIDv7 numbers with ``random_bits`` of randomness above zero bits, each greater than the last.

    Within a millisecond, or while the clock steps back a little, the random part grows by a random stride
    instead of being drawn anew. A clock that was set back by more than ten seconds is believed: else one
    glance at a wrong clock would misplace the ids of this process for as long as it lives.
    """

    def __init__(self, random_bits: int) -> None:
        self._bits = random_bits
        self._shift = _RANDOM_BITS - random_bits
        self._lock = Lock()
        self._millisecond = -1
        self._random = 0

    def next(self) -> int:
        with self._lock:
            now = time.time_ns() // 1_000_000
            if now > self._millisecond or now < self._millisecond - _MAX_BACKWARD_MS:
                self._start(now)
            else:
                self._random += 1 + secrets.randbits(32)
                if self._random >> self._bits:
                    self._start(self._millisecond + 1)
            millisecond, random = self._millisecond, self._random << self._shift
        return (millisecond << 80) | _VERSION | ((random >> 62) << 64) | _VARIANT | (random & _LOW_62)

    def _start(self, millisecond: int) -> None:
        self._millisecond = millisecond
        # The top bit stays clear, which leaves half of the range for the strides of one millisecond.
        self._random = secrets.randbits(self._bits - 1)

    def forget(self) -> None:
        """In a forked child: a lock that the parent held is gone, and its next numbers are the parent's."""
        self._lock = Lock()
        self._millisecond = -1


_runs = _Sequence(_RANDOM_BITS - ORDINAL_BITS)
_others = _Sequence(_RANDOM_BITS)
_TOKENS_AT_ONCE = 64
_tokens: list[str] = []
"""Drawn and not given out. A forked child draws its own: these are the parent's."""

if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_runs.forget)
    os.register_at_fork(after_in_child=_others.forget)
    os.register_at_fork(after_in_child=_tokens.clear)


def new_run_id() -> UUID:
    """A run's id. Later ones of this process are greater."""
    return UUID(int=_runs.next())


def node_id(run_id: UUID, ordinal: int) -> UUID:
    """The id of a run's node. Raises ``ValueError`` for what is no run's id or can be no ordinal."""
    if run_id.int & MAX_ORDINAL:
        raise ValueError(f"{run_id} is not the id of a run: its last {_ORDINAL_DIGITS} digits are not zero")
    if not 0 <= ordinal <= MAX_ORDINAL:
        raise ValueError(f"an ordinal is between 0 and {MAX_ORDINAL}, not {ordinal}")
    return UUID(int=run_id.int | ordinal)


def node_id_text(run_id_text: str, ordinal: int) -> str:
    """``node_id`` on canonical text, unchecked: it is called for every node of every dispatch."""
    return f"{run_id_text[:-_ORDINAL_DIGITS]}{ordinal:05x}"


def ending(ordinal: int) -> str:
    """How the canonical text of the node's id ends: its part of it, the rest is the run's."""
    return f"{ordinal:0{_ORDINAL_DIGITS}x}"


def run_of(node_id: UUID) -> UUID:
    """The id of the run that a node belongs to."""
    return UUID(int=node_id.int & ~MAX_ORDINAL)


def ordinal_of(node_id: UUID) -> int:
    """A node's place in the tree of its run; 0 for the run's own id."""
    return node_id.int & MAX_ORDINAL


def ordinal_of_text(node_id_text: str) -> int:
    """``ordinal_of`` on canonical text."""
    return int(node_id_text[-_ORDINAL_DIGITS:], 16)


def new_id() -> UUID:
    """An id for a job, an event or any other row. Later ones of this process are greater."""
    return UUID(int=_others.next())


def new_token() -> str:
    """A lease token: random alone, as a UUIDv4's canonical text, which uuid and text columns both give back.

    One is drawn for every boundary, so they are written out without a ``UUID`` in between and many at a time: the
    system call lets go of the interpreter's lock, and each of the handlers' threads would have its turn first.
    """
    try:
        return _tokens.pop()
    except IndexError:
        token, *spare = _drawn_tokens(_TOKENS_AT_ONCE)
        _tokens.extend(spare)
        return token


def _drawn_tokens(count: int) -> Iterator[str]:
    digits = os.urandom(16 * count).hex()
    for start in range(0, len(digits), 32):
        d = digits[start : start + 32]
        yield f"{d[:8]}-{d[8:12]}-4{d[13:16]}-a{d[17:20]}-{d[20:]}"
