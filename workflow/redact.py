"""What a person sees of a run's data. The one place that masks.

Everything that shows stored data (commands, HTTP API, dashboard, admin, live pages) passes it
through here first. What is stored stays as it is: handlers need it.

Masked are the keys that `WORKFLOW["REDACT"]` names, and those that the schemas of a run's workflow
declare secret (`Workflow.secret_keys`). Where it is not known whose data it is, or this process does
not know that workflow, the secret keys of all workflows count.

A pattern is compared with keys, without regard to case; `*`, `?` and `[...]` are wildcards as in
file names, so `password` means that very key and `*token*` all keys with "token" in them. The value
under such a key is masked whole, however deep. Text that people wrote (error messages, tracebacks,
log lines) is masked as well as text can be: `key=value`, `"key": value` and their like, pydantic's
`input_value=`, and every value that the same document holds under a masked key. What pydantic says of a field
("email: Field required") stays.
"""

from __future__ import annotations

import fnmatch
import glob
import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeVar

from pydantic import Secret, SecretBytes, SecretStr

from workflow.blanks import Blanks, blank
from workflow.conf import conf
from workflow.registry import registry
from workflow.results import NodeInfo, RunInfo, RunStatus

MASK: Final = "********"
_SHORTEST_SECRET: Final = 4
"""Shorter values are masked under their own key only: blanking every "42" would hide the whole text."""
_NOT_SECRET: Final = frozenset({"true", "false", "null", "none", MASK})

# A key, bare or within quotes, perhaps escaped ones: password=, "password":, \"password\":, user[password]=
# The look-behind lets a key begin at the start of a word only, which also keeps the search linear.
_ASSIGNMENT: Final = re.compile(
    r"(?:(?<![\w.\-])(?P<key>[\w.\-]{1,200})|(?<=[\"'])(?P<phrase>[^\"'\n\\]{1,100})(?=\\{0,8}[\"']))"
    r"(?:\\{0,8}[\"']|\])?\s{0,3}(?:=>|:=|={1,3}|:)\s{0,3}"
)
_SCHEME: Final = re.compile(r"(?:bearer|basic|token|digest)\s+", re.IGNORECASE)
_BARE: Final = re.compile(r"[^\s,;&)\]}\"'<>]+")
# How pydantic's own messages begin, which stand where a value would: "email: Field required". Only these words are let
# through, the same whatever the value was. Not what it says of a union: that shows the tag that it was given.
_COMPLAINT: Final = re.compile(
    r"Field required\b|Extra inputs are not permitted\b|(?:Field|Instance) is frozen\b|"
    r"Value error, |Assertion failed, |(?:value|Input) is not a valid |Unable to parse input |"
    r"(?:Input|(?:JSON|URL|UUID|Decimal|Fraction) input) should (?:be|have|not have) |"
    r"(?:String|Data|List|Tuple|Set|Frozenset|Dictionary|Deque|Generator|Counter|Mapping|Date|URL|URL scheme|Keys|"
    r"Set items) should (?:be|have|match|contain) |"
    r"Invalid datetime object, |Timezone offset of |UUID version \d |Input violated strict URL "
)
_OPENING_QUOTE: Final = re.compile(r"(?:[bBrRuU]{0,2})(\\*[\"'])")
_CLOSER: Final = {"(": ")", "[": "]", "{": "}"}
# pydantic names a field on one line and shows what it was given on the next.
_FIELD_ERROR: Final = re.compile(
    r"^(?P<field>[^\s].{0,300})\n(?P<lead>\s+.{0,2000}?input_value=)(?P<value>.{0,2000}?)(?=, input_type=)",
    re.MULTILINE,
)

Patterns = Iterable[str] | None
"""None, which is the default everywhere, stands for `patterns_of(workflow)`."""
Model = TypeVar("Model", RunInfo, NodeInfo)


def patterns_of(workflow: str | None = None) -> tuple[str, ...]:
    """All that is masked in the data of a workflow's runs; with None in anybody's."""
    known = None if workflow is None else registry.find(workflow)
    keys = {key for one in ([known] if known else registry.all()) for key in one.secret_keys}
    setting: Iterable[str] | str = conf.REDACT
    named = (setting,) if isinstance(setting, str) else tuple(setting)
    return (*map(str, named), *sorted(key if key == "*" else glob.escape(key) for key in keys))


def masks(workflow: str | None = None) -> bool:
    """Whether anything is masked at all in the data of a workflow's runs; with None in anybody's."""
    return bool(patterns_of(workflow))


def under_its_key(path: str, output: Any) -> Any:
    """A node's output as it stands in the state: one that is no dict under the key of the node."""
    if output is None or isinstance(output, dict):
        return output
    return {path.rpartition(".")[2].removesuffix("#run"): output}


@lru_cache(maxsize=1024)
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str] | None:
    if not patterns:
        return None
    return re.compile("|".join(fnmatch.translate(pattern.lower()) for pattern in patterns))


def _keys(patterns: Patterns, workflow: str | None = None) -> re.Pattern[str] | None:
    """What decides whether a key is masked; None when nothing is."""
    chosen = patterns_of(workflow) if patterns is None else patterns
    if isinstance(chosen, str):
        chosen = (chosen,)
    return _compiled(tuple(str(pattern) for pattern in chosen))


def _masked(key: object, keys: re.Pattern[str]) -> bool:
    return keys.match(str(key).lower()) is not None


def redact(
    value: Any, patterns: Patterns = None, secrets: Iterable[str] = (), workflow: str | None = None
) -> Any:
    """A copy of a JSON-like `value` with everything under a matching key masked.

    Strings elsewhere in it are treated as `redact_text` treats them; `secrets` are further texts
    to blank there. `workflow` is the name of the one whose data it is, if that is known. Without any
    pattern, the value itself comes back.
    """
    keys = _keys(patterns, workflow)
    if keys is None:
        return value
    return _redact(value, keys, _blanks(secrets, _secrets(value, keys)))


def redact_text(
    text: str, patterns: Patterns = None, secrets: Iterable[str] = (), workflow: str | None = None
) -> str:
    """`text` with the values of matching keys masked, as far as they can be recognised, and all `secrets`."""
    keys = _keys(patterns, workflow)
    return text if keys is None else _redact_text(text, keys, _blanks(secrets))


def redact_error(
    error: Any, patterns: Patterns = None, secrets: Iterable[str] = (), workflow: str | None = None
) -> Any:
    """A run's or node's `error` with its texts masked; its code, node and type are never touched."""
    keys = _keys(patterns, workflow)
    return error if keys is None else _redact_error(error, keys, _blanks(secrets))


def redact_entry(data: dict[str, Any], secrets: Iterable[str] = ()) -> dict[str, Any]:
    """What an entry of a run's history carries; its `error` is treated as `redact_error` treats it."""
    keys = _keys(None)
    if keys is None:
        return data
    blanks = _blanks(secrets, _secrets(data, keys))
    masked: dict[str, Any] = _redact(data, keys, blanks)
    if isinstance(masked.get("error"), Mapping):
        masked["error"] = _redact_error(data["error"], keys, blanks)
    return masked


def secrets_of(*values: Any, patterns: Patterns = None, workflow: str | None = None) -> Blanks:
    """The texts that stand under matching keys of `values`: what must not be seen elsewhere either.

    Made for many calls of the functions here: hand over this very object, not a set made of it.
    """
    keys = _keys(patterns, workflow)
    return Blanks() if keys is None else _secrets_of_all(keys, *values)


def redact_status(status: RunStatus, patterns: Patterns = None) -> RunStatus:
    """A copy of a run and its nodes, fit to be shown; itself when nothing is to be masked."""
    keys = _keys(patterns, status.run.workflow)
    if keys is None:
        return status
    run, nodes = status.run, status.nodes
    outputs = (under_its_key(node.path, node.output) for node in nodes)
    blanks = (_secrets_of_all(keys, under_its_key("input", run.input), run.state, *outputs),)
    return status.model_copy(
        update={
            "run": _redact_run(run, keys, blanks),
            "nodes": [_redact_model(node, node.path, keys, blanks) for node in nodes],
        }
    )


def redact_run(run: RunInfo, patterns: Patterns = None) -> RunInfo:
    """A copy of one run of `workflows.list`, fit to be shown; itself when nothing is to be masked."""
    keys = _keys(patterns, run.workflow)
    if keys is None:
        return run
    return _redact_run(run, keys, (_secrets_of_all(keys, under_its_key("input", run.input), run.state),))


def _redact_run(run: RunInfo, keys: re.Pattern[str], blanks: tuple[Blanks, ...]) -> RunInfo:
    return _redact_model(run, "input", keys, blanks)


def _redact_model(model: Model, path: str, keys: re.Pattern[str], blanks: tuple[Blanks, ...]) -> Model:
    """`path` is where the model's input or output stands that is no dict."""
    changes: dict[str, Any] = {}
    for name in ("input", "state", "output", "error"):
        value = getattr(model, name, None)
        if value is None:
            continue
        if name == "error":
            changes[name] = _redact_error(value, keys, blanks)
        elif isinstance(value, dict):
            changes[name] = _redact(value, keys, blanks)
        else:
            (changes[name],) = _redact(under_its_key(path, value), keys, blanks).values()
    return model.model_copy(update=changes)


def _redact(value: Any, keys: re.Pattern[str], blanks: tuple[Blanks, ...]) -> Any:
    if isinstance(value, str):
        return _redact_text(value, keys, blanks)
    if isinstance(value, Mapping):
        copy = {
            key: MASK if _masked(key, keys) and item is not None else _redact(item, keys, blanks)
            for key, item in value.items()
        }
        # One of pydantic's errors: what was wrong with the field that `loc` leads to.
        if "input" in copy and any(_masked(part, keys) for part in _parts(copy.get("loc"))):
            copy["input"] = MASK
        return copy
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_redact(item, keys, blanks) for item in value]
    return MASK if isinstance(value, (SecretStr, SecretBytes, Secret)) else value


def _parts(loc: Any) -> Iterable[Any]:
    return loc if isinstance(loc, (list, tuple)) else ()


def _redact_error(error: Any, keys: re.Pattern[str], blanks: tuple[Blanks, ...]) -> Any:
    if not isinstance(error, Mapping):
        return _redact(error, keys, blanks)
    structural = {"code", "node", "type"}
    return {
        name: value if name in structural else _redact_error_part(value, keys, blanks)
        for name, value in error.items()
    }


def _redact_error_part(value: Any, keys: re.Pattern[str], blanks: tuple[Blanks, ...]) -> Any:
    if isinstance(value, list):  # compensation_failures: errors again
        return [_redact_error(item, keys, blanks) for item in value]
    return _redact(value, keys, blanks)


def _secrets(value: Any, keys: re.Pattern[str], under: bool = False) -> set[str]:
    if isinstance(value, Mapping):
        return set().union(
            *(_secrets(item, keys, under or _masked(key, keys)) for key, item in value.items())
        )
    if isinstance(value, (list, tuple, set, frozenset)):
        return set().union(*(_secrets(item, keys, under) for item in value))
    if not under or value is None or isinstance(value, bool):
        return set()
    text = str(value)
    if len(text) < _SHORTEST_SECRET or text.lower() in _NOT_SECRET:
        return set()
    # As it stands, and as it looks inside a repr or a JSON text.
    return {text, repr(text)[1:-1], json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}


def _secrets_of_all(keys: re.Pattern[str], *values: Any) -> Blanks:
    return Blanks(set().union(*(_secrets(value, keys) for value in values)))


def _blanks(given: Iterable[str], own: Iterable[str] = ()) -> tuple[Blanks, ...]:
    """What is to be blanked. Many things are masked by the same `given`, which is therefore taken as it is."""
    known = Blanks(given)
    return known, Blanks(text for text in own if text not in known)


def _redact_text(text: str, keys: re.Pattern[str], blanks: tuple[Blanks, ...]) -> str:
    text = blank(text, MASK, *blanks)
    text = _FIELD_ERROR.sub(lambda match: _mask_field(match, keys), text)
    parts: list[str] = []
    done = 0
    for match in _ASSIGNMENT.finditer(text):
        if match.start() < done or not _matches_path(match["key"] or match["phrase"], keys):
            continue
        if match[0].endswith(": ") and _COMPLAINT.match(text, match.end()):
            continue
        end = _value_end(text, match.end())
        if end > match.end():
            parts += [text[done : match.end()], MASK]
            done = end
    return "".join(parts) + text[done:] if parts else text


def _mask_field(match: re.Match[str], keys: re.Pattern[str]) -> str:
    value = MASK if _matches_path(match["field"], keys) else match["value"]
    return f"{match['field']}\n{match['lead']}{value}"


def _matches_path(key: str, keys: re.Pattern[str]) -> bool:
    """Whether a key, or any part of a dotted one such as `user.password`, is to be masked."""
    return _masked(key, keys) or any(_masked(part, keys) for part in key.split("."))


def _value_end(text: str, start: int) -> int:
    """Where the value that begins at `start` ends: a quoted one, a bracketed one, or a bare word.

    What is cut off before its end (as pydantic cuts long values) reaches to the end of the text.
    """
    if quote := _OPENING_QUOTE.match(text, start):
        return _quoted_end(text, quote.end(), quote[1])
    if text[start : start + 1] in _CLOSER:
        return _bracket_end(text, start)
    scheme = _SCHEME.match(text, start)
    bare = _BARE.match(text, scheme.end() if scheme else start)
    return bare.end() if bare else start


def _quoted_end(text: str, start: int, quote: str) -> int:
    position = text.find(quote, start)
    while position > 0 and len(quote) == 1 and _escaped(text, position):
        position = text.find(quote, position + 1)
    return len(text) if position < 0 else position + len(quote)


def _escaped(text: str, position: int) -> bool:
    before = position
    while before > 0 and text[before - 1] == "\\":
        before -= 1
    return (position - before) % 2 == 1


def _bracket_end(text: str, start: int) -> int:
    expected: list[str] = []
    position = start
    while position < len(text):
        character = text[position]
        if character in "\"'":
            position = _quoted_end(text, position + 1, character)
            continue
        if character in _CLOSER:
            expected.append(_CLOSER[character])
        elif character in ")]}" and expected and character == expected[-1]:
            expected.pop()
            if not expected:
                return position + 1
        position += 1
    return len(text)
