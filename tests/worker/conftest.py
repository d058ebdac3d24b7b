"""Fixtures of these tests."""

from tests.support.crash import launcher, workers

__all__ = ["launcher", "workers"]
