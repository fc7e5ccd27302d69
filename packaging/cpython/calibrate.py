"""Finds, inside the interpreter that runs it, offsets of structs that no header shows: tasks, futures, iterators.

It makes objects whose members are known and looks for their addresses in the objects' own bytes. Prints a JSON object;
fails where an address is found at no place or at more than one. Runs on CPython 3.10 to 3.14, standard library only.
"""

import asyncio
import ctypes
import json
import struct
import sys

PENDING, FINISHED = b"\0\0\0\0", b"\2\0\0\0"


def words(thing):
    size = type(thing).__basicsize__
    return struct.unpack(f"<{size // 8}Q", ctypes.string_at(id(thing), size // 8 * 8))


def only(what, places):
    if len(places) != 1:
        raise SystemExit(f"{what}: found at {places!r}")
    return places[0]


def place(what, thing, member):
    return only(what, [8 * index for index, word in enumerate(words(thing)) if word == id(member)])


async def inner():
    await asyncio.sleep(1000)


async def yields():
    yield 1
    await asyncio.sleep(1000)


def called(_future):
    pass


def called_too(_future):
    pass


async def main():
    loop = asyncio.get_running_loop()
    found = {"version": sys.version.split()[0]}
    coroutine = inner()
    task = loop.create_task(coroutine, name="a name that is no other object's")
    await asyncio.sleep(0)
    found["task.basicsize"] = type(task).__basicsize__
    found["task.coroutine"] = place("task.coroutine", task, coroutine)
    found["task.name"] = place("task.name", task, task.get_name())
    found["task.loop"] = place("task.loop", task, loop)
    found["task.waiter"] = place("task.waiter", task, task._fut_waiter)

    future = loop.create_future()
    future.add_done_callback(called)
    found["future.callback"] = place("future.callback", future, called)
    future.add_done_callback(called_too)
    # The further ones are a list of tuples whose first item is the callback.
    lists = []
    for index, word in enumerate(words(future)):
        if word and 8 * index >= 16:
            try:
                kind = ctypes.cast(word + 8, ctypes.POINTER(ctypes.c_uint64)).contents.value
            except ValueError:
                continue
            if kind == id(list):
                lists.append(8 * index)
    found["future.callbacks"] = only("future.callbacks", lists)

    other, result = loop.create_future(), object()
    before = ctypes.string_at(id(other), type(other).__basicsize__)
    other.set_result(result)
    after = ctypes.string_at(id(other), type(other).__basicsize__)
    states = [
        at for at in range(0, len(before) - 3, 4) if (before[at : at + 4], after[at : at + 4]) == (PENDING, FINISHED)
    ]
    found["future.state"] = only("future.state", states)

    found["iterator.future"] = place("iterator.future", future.__await__(), future)
    generator = yields()
    step = generator.__anext__()
    found["step.generator"] = place("step.generator", step, generator)
    wrapper = coroutine.__await__()
    found["wrapper.coroutine"] = place("wrapper.coroutine", wrapper, coroutine)
    # What a future calls to wake a task: a method object, in C, whose self is the task.
    wakeup = task._fut_waiter._callbacks[0][0]
    if type(wakeup).__name__ == "builtin_function_or_method":
        found["builtin.self"] = place("builtin.self", wakeup, task)
    else:
        found["wakeup.task"] = place("wakeup.task", wakeup, task)
    task.cancel()
    step.close()
    print(json.dumps(found))


asyncio.run(main())
