"""Which task waits for which: await, gather, wait, wait_for, shield, TaskGroup (asyncio's and anyio's).

A direct await is seen in the chain itself. What stands between is a plain future: then the frame that waits has the
tasks in a local variable, or, for shield, the future's callback has the inner task in its closure.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from freezeframe.agentd.host.cpython.frames import Codes
from freezeframe.agentd.host.cpython.objects import Objects
from freezeframe.agentd.host.cpython.tasks import FoundTask, TaskFrame
from freezeframe.agentd.host.target_memory import UnreadableMemoryError

_GATHERING = "_GatheringFuture"
_SHIELD = "_outer_done_callback"
_TASKS_FILE = "asyncio/tasks.py"
_GROUP_FILES = ("asyncio/taskgroups.py", "anyio/_backends/_asyncio.py")
_GROUP_NAMES = frozenset({"task_group", "group", "tg"})
_GROUP_FUNCTIONS = frozenset({"__aexit__", "_aexit"})
_WAITING_FUNCTIONS = _GROUP_FUNCTIONS | {"_wait", "wait_for"}
# How many frames from the innermost one are looked at.
_FRAMES = 4
_MAX_CELLS = 64
_MAX_CHILDREN = 10_000
_WORD = struct.Struct("<Q")

# Address of the awaited task, and how.
Edge = tuple[int, str]


def find_edges(
    tasks: Sequence[FoundTask], objects: Objects, codes: Codes, known: AbstractSet[int]
) -> dict[int, list[Edge]]:
    """Give, by the address of a task, those of the `known` ones that it waits for.

    `objects` reads what does not change meanwhile. A task whose frames could not be read to this end has no edges.
    Raises TargetMemoryError for what ends every read.
    """
    found: dict[int, list[Edge]] = {}
    plain: list[FoundTask] = []
    for task in tasks:
        if task.doubt or not task.frames or not task.awaited:
            continue
        try:
            edges = _of_frames(task, objects, codes, known)
            opened = _of_open_groups(task, objects, codes, known)
        except UnreadableMemoryError:
            continue
        if not edges and task.awaits == "Future":
            plain.append(task)
        # One that it awaits now may be in a group too.
        awaited = {child for child, _ in edges}
        edges += [edge for edge in dict.fromkeys(opened) if edge[0] not in awaited]
        if edges:
            found[task.address] = edges
    for address, inner in _shields(plain, objects, codes, known):
        found.setdefault(address, []).append((inner, "shield"))
    return found


def _of_open_groups(task: FoundTask, objects: Objects, codes: Codes, known: AbstractSet[int]) -> list[Edge]:
    """Tasks of groups that the chain has entered: none of its frames goes on beyond the group without them."""
    found: list[Edge] = []
    for frame in task.frames:
        own = codes.own_names(frame.code)
        if _GROUP_NAMES.isdisjoint(own):
            continue
        for group in codes.local(frame.address, frame.code, *(_GROUP_NAMES & own)).values():
            if objects.type_of(group).name == "TaskGroup":
                tasks = objects.attribute(group, "_tasks")
                found += _edges(objects.set_items(tasks) if tasks else (), "TaskGroup", known)
    return found


def _of_frames(task: FoundTask, objects: Objects, codes: Codes, known: AbstractSet[int]) -> list[Edge]:
    innermost = task.frames[-1]
    if task.awaited in known:
        in_wait_for = innermost.code.name == "wait_for" and innermost.place.file.endswith(_TASKS_FILE)
        return [(task.awaited, "wait_for" if in_wait_for else "await")]
    if task.awaits == _GATHERING:
        children = objects.attribute(task.awaited, "_children")
        return _edges(objects.sequence(children) if children else (), "gather", known)
    for frame in task.frames[-_FRAMES:]:
        if frame.code.name not in _WAITING_FUNCTIONS:
            continue
        file = frame.place.file
        if file.endswith(_TASKS_FILE):
            edges = _of_wait(frame, objects, codes, known)
        elif file.endswith(_GROUP_FILES) and frame.code.name in _GROUP_FUNCTIONS:
            edges = _of_group(frame, objects, codes, known)
        else:
            continue
        if edges:
            return edges
    return []


def _of_wait(frame: TaskFrame, objects: Objects, codes: Codes, known: AbstractSet[int]) -> list[Edge]:
    function = frame.code.name
    if function == "_wait":
        waited = codes.local(frame.address, frame.code, "fs").get("fs", 0)
        if not waited:
            return []
        try:
            members = objects.set_items(waited)
        except UnreadableMemoryError:
            members = objects.sequence(waited)
        return _edges(members, "wait", known)
    if function == "wait_for":
        waited = codes.local(frame.address, frame.code, "fut").get("fut", 0)
        return _edges((waited,), "wait_for", known)
    return []


def _of_group(frame: TaskFrame, objects: Objects, codes: Codes, known: AbstractSet[int]) -> list[Edge]:
    group = codes.local(frame.address, frame.code, "self").get("self", 0)
    if not group:
        return []
    tasks = objects.attribute(group, "_tasks")
    return _edges(objects.set_items(tasks) if tasks else (), "TaskGroup", known)


def _edges(members: Sequence[int], kind: str, known: AbstractSet[int]) -> list[Edge]:
    return [(member, kind) for member in members[:_MAX_CHILDREN] if member in known]


def _shields(
    tasks: Sequence[FoundTask], objects: Objects, codes: Codes, known: AbstractSet[int]
) -> list[tuple[int, int]]:
    """Find those that await the outer future of a shield: (task, inner task)."""
    at = objects.layout["future.callback"]
    callbacks = [
        _WORD.unpack(data)[0] if data is not None else 0
        for data in objects.memory.read_many([(task.awaited + at, 8) for task in tasks])
    ]
    kinds = objects.memory.read_many([(callback + 8, 8) for callback in callbacks])
    function = objects.types["function"].to_bytes(8, "little")
    found: list[tuple[int, int]] = []
    for task, callback, kind in zip(tasks, callbacks, kinds, strict=True):
        if kind != function:
            continue
        try:
            enclosed = [each for each in _enclosed(callback, objects, codes) if each in known and each != task.address]
            found += [(task.address, inner) for inner in enclosed]
        except UnreadableMemoryError:
            continue
    return found


def _enclosed(function: int, objects: Objects, codes: Codes) -> list[int]:
    """Values in the closure of shield's callback."""
    memory, layout = objects.memory, objects.layout
    code = codes.code(memory.word(function + layout["function.code"]))
    closure = memory.word(function + layout["function.closure"])
    if code.name != _SHIELD or not closure:
        return []
    cells = objects.sequence(closure)[:_MAX_CELLS]
    return [memory.word(cell + layout["cell.value"]) for cell in cells]
