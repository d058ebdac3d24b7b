"""Runs one claimed job: user code, timeouts, outcomes to `plan`, boundaries to the store."""

from workflow.executor.attempt import Attempt
from workflow.executor.connections import clean_connections, clean_shared_connections
from workflow.executor.desk import Desk
from workflow.executor.execution import Execution
from workflow.executor.ghosts import ghosts
from workflow.executor.jobs import execute, give_back
from workflow.executor.moving import Mover
from workflow.executor.questions import Question
from workflow.executor.runtime import Runtime

__all__ = [
    "Attempt",
    "Desk",
    "Execution",
    "Mover",
    "Question",
    "Runtime",
    "clean_connections",
    "clean_shared_connections",
    "execute",
    "ghosts",
    "give_back",
]
