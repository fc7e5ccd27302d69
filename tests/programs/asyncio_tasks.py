"""A program of known asyncio tasks: asyncio_tasks.py COUNT CHURN_PER_S TRUTH.json [uvloop] [threads] [alone].

With "alone" it has no other tasks than COUNT. Writes what each of its tasks awaits, as the interpreter itself tells it,
then prints "ready". Runs on CPython 3.10 to 3.14 with the standard library alone.
"""

import asyncio
import gc
import json
import sys
import threading
import time

COUNT, CHURN_PER_S, TRUTH = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if "uvloop" in sys.argv:
    import uvloop

    new_loop = uvloop.new_event_loop
else:
    new_loop = asyncio.new_event_loop


async def leaf(event):
    await event.wait()


async def middle(event):
    await leaf(event)


async def top(event):
    await middle(event)


async def sleeper(seconds):
    await asyncio.sleep(seconds)


async def getter(queue):
    return await queue.get()


async def locker(lock):
    async with lock:
        pass


async def numbers(event):
    yield 1
    await event.wait()
    yield 2


async def over(event):
    async for _ in numbers(event):
        pass


async def in_a_loop(event):
    for _ in iter(int, 1):
        await event.wait()


async def waits_for(event):
    await asyncio.wait_for(event.wait(), 10000)


async def awaiter(task):
    await task


async def gatherer(tasks):
    await asyncio.gather(*tasks)


async def waiter(tasks):
    await asyncio.wait(tasks)


async def shielder(task):
    await asyncio.shield(task)


async def grouper(event):
    async with asyncio.TaskGroup() as group:
        group.create_task(leaf(event), name="grouped-0")
        group.create_task(top(event), name="grouped-1")


class Awaitable:
    def __init__(self, event):
        self.event = event

    def __await__(self):
        return (yield from self.event.wait().__await__())


async def of_a_class(event):
    await Awaitable(event)


async def reads_a_stream(port):
    reader, _ = await asyncio.open_connection("127.0.0.1", port)
    await reader.readuntil(b"\n")


async def executes():
    await asyncio.get_running_loop().run_in_executor(None, time.sleep, 100000)


async def short(number):
    await asyncio.sleep(0.001 * (number % 5))
    await asyncio.sleep(0)


async def churn():
    number, running = 0, set()
    while True:
        for _ in range(max(1, CHURN_PER_S // 200)):
            task = asyncio.ensure_future(short(number))
            running.add(task)
            task.add_done_callback(running.discard)
            number += 1
        await asyncio.sleep(0.005)


def inner_of(thing):
    for name in ("cr_await", "ag_await", "gi_yieldfrom"):
        if getattr(thing, name, None) is not None:
            return getattr(thing, name)
    return None


def chain(task):
    """[[function, line], ...] outermost first."""
    found, thing = [], task.get_coro()
    while thing is not None:
        frame = next((getattr(thing, f) for f in ("cr_frame", "ag_frame", "gi_frame") if getattr(thing, f, None)), None)
        if frame is None:
            hidden = [
                each for each in gc.get_referents(thing) if hasattr(each, "ag_frame") or hasattr(each, "cr_frame")
            ]
            if not hidden:
                break
            thing = hidden[0]
            continue
        found.append([frame.f_code.co_name, frame.f_lineno])
        thing = inner_of(thing)
    return found


async def main(prefix, told):
    event, queue, lock, forever = asyncio.Event(), asyncio.Queue(), asyncio.Lock(), 100000
    await lock.acquire()

    async def hold(_reader, _writer):
        await asyncio.sleep(forever)

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    kinds = (
        lambda: top(event), lambda: sleeper(forever), lambda: getter(queue), lambda: locker(lock),
        lambda: over(event), lambda: waits_for(event), lambda: in_a_loop(event), lambda: of_a_class(event),
    )  # fmt: skip
    kept = []

    def make(coroutine, name=None):
        task = asyncio.get_running_loop().create_task(coroutine)
        if name:
            task.set_name(prefix + name)
        kept.append(task)
        return task

    for number in range(COUNT):
        make(kinds[number % len(kinds)](), f"request-{number}")
    if "alone" in sys.argv:
        while any(len(chain(task)) < 2 for task in kept):
            await asyncio.sleep(0.02)
        told[prefix] = {task.get_name(): chain(task) for task in kept}
        return kept, server
    make(awaiter(make(top(event), "awaited")), "awaiter")
    make(gatherer([make(leaf(event), "gathered-0"), make(leaf(event), "gathered-1")]), "gatherer")
    make(waiter([make(leaf(event), "waited-0"), make(leaf(event), "waited-1")]), "waiter")
    make(shielder(make(leaf(event), "shielded")), "shielder")
    if hasattr(asyncio, "TaskGroup"):
        make(grouper(event), "grouper")
    make(reads_a_stream(port), "reader")
    make(executes(), "executor")
    # Named by asyncio itself.
    make(sleeper(forever))
    make(asyncio.sleep(0), "ended")
    current, before = asyncio.current_task(), None
    # Until all are where they stay: the reader connected, the server's side of it accepted.
    while before is None or before != told[prefix] or told[prefix][prefix + "reader"][-1][0] != "_wait_for_data":
        await asyncio.sleep(0.1)
        before = told.get(prefix)
        told[prefix] = {task.get_name(): chain(task) for task in asyncio.all_tasks() if task is not current}
    current.set_name(prefix + "main")
    if CHURN_PER_S:
        make(churn(), "churn")
    return kept, server


def run(prefix, told, ready):
    loop = new_loop()
    asyncio.set_event_loop(loop)
    kept = loop.run_until_complete(main(prefix, told))
    loop.call_soon(ready)
    loop.run_forever()
    del kept


def say_ready():
    with open(TRUTH, "w") as file:
        json.dump({name: frames for tasks in told.values() for name, frames in tasks.items()}, file)
    print("ready", flush=True)


told = {}
if "threads" in sys.argv:
    for number in range(2):
        begun = threading.Event()
        name = f"loop-{number}"
        threading.Thread(target=run, args=(name + "-", told, begun.set), name=name, daemon=True).start()
        begun.wait()
run("", told, say_ready)
