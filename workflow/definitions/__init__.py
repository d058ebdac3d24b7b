"""What users declare: workflows of pipelines of stages of actions, checked while they are made.

Every fault of structure raises ``WorkflowInvalid`` and says the place and the rule. Nothing here touches the
database or Django; ``Workflow.tree`` is all that the engine needs to know of a definition's shape.
"""

from workflow.definitions.actions import Action, action
from workflow.definitions.groups import Parallel, parallel
from workflow.definitions.handlers import Handler
from workflow.definitions.pipelines import Pipeline, Workflow
from workflow.definitions.rules import Definition
from workflow.definitions.stages import Stage, WaitFor
from workflow.definitions.trees import Gone, Tree, TreeNode, beside, placed

__all__ = [
    "Action",
    "Definition",
    "Gone",
    "Handler",
    "Parallel",
    "Pipeline",
    "Stage",
    "Tree",
    "TreeNode",
    "WaitFor",
    "Workflow",
    "action",
    "beside",
    "parallel",
    "placed",
]
