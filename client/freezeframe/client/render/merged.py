"""Python frames in their place among the native ones of the same thread."""

from __future__ import annotations

from collections.abc import Sequence

from freezeframe.v1 import stack_pb2

_INTERPRETER_LOOP = "_PyEval_EvalFrameDefault"


def merge(
    native: Sequence[stack_pb2.NativeFrame], python: Sequence[stack_pb2.Frame]
) -> tuple[stack_pb2.NativeFrame | stack_pb2.Frame, ...]:
    """Frames of both, innermost first.

    Each run of the interpreter's loop is replaced by its Python frame where there are as many; since 3.11 one run may
    have several, so else all of them stand where the innermost run is.
    """
    runs = [index for index, frame in enumerate(native) if frame.function == _INTERPRETER_LOOP]
    if not python:
        return tuple(native)
    if len(runs) == len(python):
        own = dict(zip(runs, python, strict=True))
        return tuple(own.get(index, frame) for index, frame in enumerate(native))
    if not runs:
        return (*native, *python)
    return (*native[: runs[0]], *python, *native[runs[0] + 1 :])
