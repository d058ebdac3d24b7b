"""The same work on other engines, side by side with ours: `python -m bench.peers`, or `make bench-peers`.

Each engine runs in an environment of its own, so whatever is imported there (`drive`, `engines`, `marks`, and
`bench.processes`) needs nothing but Python's library, psycopg, and the engine itself.
"""
