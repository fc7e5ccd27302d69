"""speedscope's own JSON, https://www.speedscope.app/file-format-schema.json: one profile per thread that was sampled.

Threads and tasks of one instant are one profile per process, each a sample of weight 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from freezeframe.client.export.stacks import Frame, Stack, Stacks
from freezeframe.client.render.guard import clean, clean_json

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def render(stacks: Stacks) -> Iterator[str]:
    """Give the document."""
    frames: dict[Frame, int] = {}
    groups: dict[str, list[Stack]] = {}
    for stack in stacks.stacks:
        name = f"{stack.process}, {stack.owner}" if stacks.period_ns else stack.process
        groups.setdefault(name, []).append(stack)
    profiles = [_profile(name, members, stacks, frames) for name, members in groups.items()]
    document = {
        "$schema": SCHEMA,
        "exporter": "freezeframe",
        "name": clean(stacks.name),
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(frame) for frame in frames]},
        "profiles": profiles,
    }
    yield clean_json(json.dumps(document, ensure_ascii=False)) + "\n"


def _profile(name: str, members: list[Stack], stacks: Stacks, frames: dict[Frame, int]) -> dict[str, Any]:
    samples, weights = [], []
    for stack in members:
        # A task or thread is told by its own frame: there are many on one page.
        own = () if stacks.period_ns else (Frame(name=stack.owner, file=""),)
        samples.append([frames.setdefault(frame, len(frames)) for frame in (*own, *stack.frames)])
        weights.append(stack.count * stacks.period_ns / 1e6 if stacks.period_ns else stack.count)
    return {
        "type": "sampled",
        "name": clean(name),
        "unit": "milliseconds" if stacks.period_ns else "none",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }


def _frame(frame: Frame) -> dict[str, Any]:
    known: dict[str, Any] = {"name": clean(frame.name)}
    if frame.file:
        known["file"] = clean(frame.file)
    if frame.line:
        known["line"] = frame.line
    return known
