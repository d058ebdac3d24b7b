"""The named raw statements, one module a theme. Each says what it touches, its guard and its lock order.

Statements take their rows as PostgreSQL array literals (see `workflow.sql.arrays`), so that one
statement serves one row or a thousand, through psycopg's connections and Django's alike.
"""
