"""Who rings when a job is due: the doorbell. Never the truth: a worker that hears nothing still polls.

A transport is a module with a `Doorbell` class; `WORKFLOW["TRANSPORT"]` names the module. That of Celery rings
twice: its doorbell is PostgreSQL's, and tells relays, which send messages (see `workflow.celery`).
"""
