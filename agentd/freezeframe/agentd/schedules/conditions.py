"""What a trigger waits for: "stuck-for=30s" and its kind, or an expression over the same values. Pure.

Each of the short forms is an expression with a time for which it has to hold:

    stuck-for=30s       longest_wait_s >= 30
    no-tokens-for=30s   silent_s >= 30
    backlog[=N]         backlog >= N (1), for 3 s
    xid                 xids > 0
    process-stopped     stopped > 0, for 3 s
    process-exit        exits > 0
    psi=memory>40       psi_memory > 40, for 10 s

Expressions are walked by simpleeval; here only numbers, the names below, arithmetic without powers, comparisons, `and`,
`or`, `not`, `abs`, `min` and `max` are let through to it, so that no condition costs more than some microseconds.
"""

from __future__ import annotations

import ast
import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import simpleeval

# What a condition can ask for, each the value of the last second.
NAMES: dict[str, str] = {
    "requests": "requests in flight from clients",
    "longest_wait_s": "how long the request that has waited the longest has got no byte of its answer",
    "oldest_s": "age of the oldest request in flight",
    "silent_s": "how long a server with requests in flight has sent its clients nothing",
    "answer_bytes": "bytes per second to clients",
    "request_bytes": "bytes per second from clients",
    "backlog": "connections that wait to be accepted by a process of the path",
    "stopped": "processes of the path that are stopped or frozen",
    "exits": "processes of the path that ended",
    "xids": "Xids that the kernel told of",
    "psi_cpu": "percent of the time that tasks waited for a CPU",
    "psi_memory": "percent of the time that tasks waited for memory",
    "psi_io": "percent of the time that tasks waited for input and output",
}
SHORT_FORMS = ("stuck-for", "no-tokens-for", "backlog", "xid", "process-stopped", "process-exit", "psi")
LONGEST = 500
_DEEPEST = 20
_LARGEST = 1e18
_DURATION = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,3})?)(?P<unit>ms|s|m|h)?", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}
_PRESSURE = re.compile(r"(?P<resource>cpu|memory|io)\s*>=?\s*(?P<percent>\d{1,3}(?:\.\d{1,3})?)", re.ASCII)
_FUNCTIONS = {"abs": abs, "min": min, "max": max}
_NODES = (
    *(ast.Expression, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.Constant, ast.Name, ast.Load),
    *(ast.And, ast.Or, ast.Not, ast.USub, ast.UAdd, ast.Add, ast.Sub, ast.Mult, ast.Div),
    *(ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq),
)
_STOPPED_S, _BACKLOG_S, _PRESSURE_S = 3.0, 3.0, 10.0


class ConditionError(ValueError):
    """A text that is no condition; `hint` says what is."""

    def __init__(self, detail: str, hint: str = "") -> None:
        """Keep the sentence and the next step."""
        super().__init__(detail)
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What was asked for, and what it means."""

    # As it was given: "stuck-for=30s".
    text: str
    # "longest_wait_s >= 30".
    expression: str
    # For how long it has to hold.
    hold_s: float = 0.0


def parse(text: str) -> Condition:
    """Read a short form or an expression. Raises ConditionError."""
    text = text.strip()
    if not text or len(text) > LONGEST:
        raise ConditionError(f"a condition has 1 to {LONGEST} characters, this one {len(text)}", _forms())
    name, equals, value = (part.strip() for part in text.partition("="))
    if name in SHORT_FORMS and not value.startswith("="):
        expression, hold_s = _short(name, value if equals else "", text)
    else:
        expression, hold_s = text, 0.0
    check(expression)
    return Condition(text=text, expression=expression, hold_s=hold_s)


def _short(name: str, value: str, text: str) -> tuple[str, float]:
    if name in ("stuck-for", "no-tokens-for"):
        seconds = duration_s(value)
        if not seconds:
            raise ConditionError(f"{text[:80]}: {name} needs a time", f"{name}=30s")
        return f"{'longest_wait_s' if name == 'stuck-for' else 'silent_s'} >= {seconds:.12g}", 0.0
    if name == "backlog":
        if value and (not value.isascii() or not value.isdecimal() or not 0 < int(value) <= 1_000_000):  # noqa: PLR2004
            raise ConditionError(f"{text[:80]}: backlog takes a number of connections", "backlog=10")
        return f"backlog >= {value or 1}", _BACKLOG_S
    if name == "psi":
        found = _PRESSURE.fullmatch(value)
        if found is None or float(found["percent"]) >= 100:  # noqa: PLR2004 - percent
            raise ConditionError(f"{text[:80]}: psi needs a resource and a percentage", "psi=memory>40, or cpu, or io")
        return f"psi_{found['resource']} > {float(found['percent']):g}", _PRESSURE_S
    if value:
        raise ConditionError(f"{text[:80]}: {name} takes no value", name)
    alone = {
        "xid": ("xids > 0", 0.0),
        "process-stopped": ("stopped > 0", _STOPPED_S),
        "process-exit": ("exits > 0", 0.0),
    }
    return alone[name]


def duration_s(text: str) -> float:
    """Read "30", "30s", "500ms", "2m", "1h"; 0 for what is none."""
    found = _DURATION.fullmatch(text)
    return float(found["number"]) * _UNITS[found["unit"]] if found is not None else 0.0


@lru_cache(maxsize=256)
def check(expression: str) -> frozenset[str]:
    """Refuse what is more than arithmetic over known names; gives the names in it. Raises ConditionError."""
    try:
        tree = ast.parse(expression, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ConditionError(f"{expression[:80]!r} is neither a known condition nor an expression", _forms()) from error
    names = set()
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if refused := _refused(node):
            raise ConditionError(f"{expression[:80]!r}: {refused}", _forms())
        if isinstance(node, ast.Name):
            known = _FUNCTIONS if id(node) in called else NAMES
            if node.id not in known:
                near = difflib.get_close_matches(node.id, (*known, *SHORT_FORMS), n=1)
                hint = f"did you mean {near[0]}?" if near else _forms()
                raise ConditionError(f"{expression[:80]!r}: there is no {node.id[:40]!r}", hint)
            if id(node) not in called:
                names.add(node.id)
    if not names:
        raise ConditionError(f"{expression[:80]!r} asks for nothing that changes", _forms())
    if _depth(tree) > _DEEPEST:
        raise ConditionError(f"{expression[:80]!r} is nested too deeply", "make two schedules of it")
    return frozenset(names)


def holds(expression: str, values: Mapping[str, float]) -> bool | None:
    """Tell whether a checked expression holds; None while a value that it needs is not known."""
    wanted = check(expression)
    known = {name: values[name] for name in wanted if name in values and math.isfinite(values[name])}
    if len(known) < len(wanted):
        return None
    try:
        return bool(simpleeval.SimpleEval(functions=_FUNCTIONS, names=known).eval(expression))
    except (ZeroDivisionError, OverflowError, TypeError, simpleeval.InvalidExpression):
        return None


def _refused(node: ast.AST) -> str:
    """Say why a part of an expression is not let through; empty when it is."""
    if not isinstance(node, _NODES):
        return f"{type(node).__name__} is not allowed in a condition"
    if isinstance(node, ast.Constant) and type(node.value) not in (int, float):
        return "only numbers are values"
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not node.value <= _LARGEST:
        return f"numbers go up to {_LARGEST:g}"
    if isinstance(node, ast.Call) and (node.keywords or not node.args or not isinstance(node.func, ast.Name)):
        return "only abs, min and max are called"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        alone = node.func.id == "abs"
        if (len(node.args) == 1) != alone:
            return "abs takes one value" if alone else f"{node.func.id} takes two values or more"
    return ""


def _depth(tree: ast.AST) -> int:
    depth, nodes = 0, [tree]
    while nodes:
        depth, nodes = depth + 1, [child for node in nodes for child in ast.iter_child_nodes(node)]
    return depth


def _forms() -> str:
    return (
        "stuck-for=30s, no-tokens-for=30s, backlog, xid, process-stopped, process-exit, psi=memory>40, "
        f"or an expression over {', '.join(NAMES)}"
    )
