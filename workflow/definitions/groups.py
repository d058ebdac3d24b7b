"""Order and concurrency: how lists and ``parallel(...)`` become groups.

A group is what runs at the same time; the groups of a stage or pipeline run one after another. Both are
kept as a tuple of tuples, whatever the user wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any, Final, TypeVar

from workflow.definitions.handlers import label
from workflow.definitions.rules import Definition, fault, quote, show

D = TypeVar("D", bound=Definition)
Groups = tuple[tuple[D, ...], ...]

_MAX_DEPTH = 100


class Parallel:
    """Members that run at the same time; made by ``parallel``."""

    __slots__ = ("members",)

    def __init__(self, members: tuple[Definition, ...]) -> None:
        self.members = members

    def __repr__(self) -> str:
        return f"parallel({', '.join(map(repr, self.members))})"


def parallel(*members: Any) -> Parallel:
    """A concurrent group of actions or of stages: an item of ``actions=`` or ``stages=``, or all of it.

    Takes the members one by one or as one list. A group inside a group joins it. Raises ``WorkflowInvalid``
    for an empty group and for a list beside other members, which would be a sequence inside a group.
    """
    if len(members) == 1 and _is_list(members[0]):
        members = tuple(members[0])
    flat: list[Definition] = []
    for member in members:
        if isinstance(member, Parallel):
            flat.extend(member.members)
        elif (
            isinstance(member, Definition) and member.kind != "wait"
        ):  # the option tells which of the others fit
            flat.append(member)
        elif _is_list(member):
            raise fault(
                "parallel(...)",
                "takes its members one by one or as one list; a sequence in it is a stage of its own",
            )
        else:
            raise fault("parallel(...)", _refusal(member, "action", "stage"))
    if not flat:
        raise fault("parallel(...)", "the group is empty")
    return Parallel(tuple(flat))


def make_groups(
    items: object, kind: type[D], place: str, option: str, *, concurrent: bool = True
) -> Groups[D]:
    """``items`` as groups of ``kind``, in order. Lists in lists are flattened; a lone item is a group of one.

    Refuses an empty list, items of another kind, two items of one name and, unless ``concurrent``, groups.
    """
    if not isinstance(items, Parallel) and not _is_list(items):
        raise fault(place, f"{option} takes a list, not {show(items)}")
    groups: list[tuple[D, ...]] = []
    seen: set[str] = set()
    for item in _flatten([items], place, option, 0):
        if isinstance(item, Parallel) and not concurrent:
            raise fault(place, f"{option} run one after another: parallel(...) groups actions or stages")
        group = item.members if isinstance(item, Parallel) else (item,)
        groups.append(tuple(_member(member, kind, place, option, seen) for member in group))
    if not groups:
        raise fault(place, f"{option} is empty: at least one {kind.kind} is needed")
    return tuple(groups)


def _member(member: object, kind: type[D], place: str, option: str, seen: set[str]) -> D:
    if not isinstance(member, kind):
        raise fault(place, f"{option} takes {kind.kind}s: {_refusal(member, kind.kind)}")
    if member.name in seen:
        raise fault(place, f"two {kind.kind}s are named {quote(member.name)}; names on one level must differ")
    seen.add(member.name)
    return member


def _flatten(items: Iterable[Any], place: str, option: str, depth: int) -> Iterable[Any]:
    if depth > _MAX_DEPTH:
        raise fault(place, f"{option} nests lists more than {_MAX_DEPTH} deep (a list that holds itself?)")
    for item in items:
        if _is_list(item):
            yield from _flatten(item, place, option, depth + 1)
        else:
            yield item


def _is_list(value: object) -> bool:
    """True for lists, tuples, generators; False for what has no order of its own, or is no collection."""
    unfit = (str, bytes, bytearray, Mapping, Set, Definition, Parallel, type)
    return isinstance(value, Iterable) and not isinstance(value, unfit)


def _refusal(item: object, *kinds: str) -> str:
    """Why ``item`` can't stand where one of these ``kinds`` goes, with the way out where there is an obvious one."""
    if isinstance(item, Definition) and item.kind in _PLACES:
        return f"{quote(item.name)} is {_with_article(item.kind)}; {_PLACES[item.kind]}"
    if callable(item) and not isinstance(item, type):
        if "action" in kinds:
            return f"{label(item)} is a bare function, wrap it in @action"
        if "stage" in kinds:
            return f"{label(item)} is a bare function; a stage that runs it is Stage(name, run=...)"
    others = " nor ".join(_with_article(kind) for kind in kinds)
    refusal = f"{show(item)} is neither {others}" if len(kinds) > 1 else f"{show(item)} is no {kinds[0]}"
    if isinstance(item, Definition) and item.kind == "wait":
        refusal += "; a WaitFor goes into wait_for= of a stage"
    return refusal


_PLACES: Final = {
    "action": "an action goes into the actions= of a stage",
    "stage": "a stage goes into the stages= of a pipeline or workflow",
    "pipeline": "a pipeline goes into the pipelines= of a workflow",
    "workflow": "a workflow can't be part of another",
}


def _with_article(kind: str) -> str:
    return f"{'an' if kind == 'action' else 'a'} {kind}"
