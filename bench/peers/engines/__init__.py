"""One module for each engine; `load` imports only the one that is asked for."""

from __future__ import annotations

from importlib import import_module

from bench.peers.engines.base import Engine, Options

NAMES = ("rawpg", "absurd", "celery", "procrastinate", "dbos", "ours")


def load(name: str, options: Options) -> Engine:
    """The engine of that name."""
    made: Engine = import_module(f"bench.peers.engines.{name}").Driver(options)
    return made
