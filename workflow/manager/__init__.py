"""The public commands: they check what they are given, ask `store` to do it, and name what it refused."""

from workflow.manager.workflows import Workflows, workflows

__all__ = ["Workflows", "workflows"]
