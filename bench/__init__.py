"""Benchmarks of the engine: `python -m bench`, or `make bench`. Loopback only, bounded, and they end by themselves."""
