"""Units in the pool of a Celery worker: a relay in its main process, an engine in each process of its pool.

Imported by `workflow.tasks` where Celery is installed, and by nothing else.
"""
