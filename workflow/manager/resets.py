"""Which nodes a retry from a path does again. Pure."""

from __future__ import annotations

from workflow.definitions import Tree
from workflow.definitions.rules import did_you_mean, quote
from workflow.errors import NodeUnknown


def to_reset(tree: Tree, path: str) -> list[str]:
    """The paths of the node's subtree, of all that comes after it in the tree, and of its ancestors.

    What comes after are the later groups of its parent and of each ancestor; the members of its own group,
    and of an ancestor's, run beside it and stand. Raises ``NodeUnknown`` for a path that is not in the tree.
    """
    node = tree.by_path.get(path)
    if node is None:
        ends = [known for known in tree.by_path if known.endswith(f".{path}")]
        hint = did_you_mean(ends[0] if len(ends) == 1 else path, tree.by_path)
        raise NodeUnknown(f"no node has the path {quote(path)}{hint}")
    ordinals = set(range(node.ordinal, node.end))
    while node.parent >= 0:
        parent = tree.nodes[node.parent]
        passed = False
        for group in parent.groups:
            if passed:
                for member in group:
                    ordinals.update(range(member, tree.nodes[member].end))
            passed = passed or node.ordinal in group
        if parent.ordinal:
            ordinals.add(parent.ordinal)
        node = parent
    return [tree.nodes[ordinal].path for ordinal in sorted(ordinals)]
