"""Samples of one process's threads, turned into stacks: unwound by the same code as stacks of a look, then counted."""

from __future__ import annotations

from collections.abc import Sequence

from freezeframe.agentd.host.native.files import AddressSpace
from freezeframe.agentd.host.native.look import Copy, Unwinding
from freezeframe.agentd.host.native.machine import Machine
from freezeframe.agentd.host.native.perf_events import Sample
from freezeframe.agentd.host.native.task_iterator import Task
from freezeframe.judge.model import Frame, NativeFrame, ProfileFrame

_INTERPRETER_LOOP = "_PyEval_EvalFrameDefault"

Frames = tuple[ProfileFrame, ...]


class SampledProcess:
    """Turns samples of one process into frames."""

    def __init__(self, machine: Machine, space: AddressSpace, *, frames: int) -> None:
        """Start the unwinder. Raises LibdwError."""
        self._machine = machine
        self._space = space
        # Of the target's memory only what was copied is of that moment.
        self._unwinding = Unwinding(machine, space, None, frames=frames)

    def close(self) -> None:
        """Free what the unwinder holds."""
        self._unwinding.close()

    def frames(self, sample: Sample, python: Sequence[Frame]) -> Frames:
        """Frames of one sample, innermost first, with those of Python in their place."""
        task = Task(tid=sample.tid, still=True, switches=0, registers=sample.registers)
        base = sample.registers[self._machine.stack_pointer] or 0
        stack, _ = self._unwinding.stack(Copy(task=task, base=base, stack=sample.stack))
        return merged(stack.frames, python)


def merged(native: Sequence[NativeFrame], python: Sequence[Frame]) -> Frames:
    """Frames of both, innermost first.

    Each run of the interpreter's loop is replaced by its Python frame where there are as many; since 3.11 one run may
    have several, so else all of them stand where the innermost run is.
    """
    own = [ProfileFrame(function=f.function, file=f.file, line=f.line, python=True) for f in python]
    runs = [index for index, frame in enumerate(native) if frame.function == _INTERPRETER_LOOP]
    plain = [ProfileFrame(function=f.function, file=f.module) for f in native]
    if not own or not runs:
        return (*plain, *own)
    if len(runs) == len(own):
        places = dict(zip(runs, own, strict=True))
        return tuple(places.get(index, frame) for index, frame in enumerate(plain))
    return (*plain[: runs[0]], *own, *plain[runs[0] + 1 :])
