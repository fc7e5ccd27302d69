"""asyncio tasks that wait for each other's locks, for good or only for long; standard library only.

usage: asyncio_locks.py SCENE; prints "ready" when all of them wait.
"""

from __future__ import annotations

import asyncio
import sys

scene = sys.argv[1]


async def holds_and_wants(mine: asyncio.Lock, other: asyncio.Lock, all_hold: asyncio.Event) -> None:
    async with mine:
        await all_hold.wait()
        async with other:
            pass


async def holds_and_wants_timed(mine: asyncio.Lock, other: asyncio.Lock, all_hold: asyncio.Event) -> None:
    async with mine:
        await all_hold.wait()
        await asyncio.wait_for(other.acquire(), 86_400)


async def holds(mine: asyncio.Lock, all_hold: asyncio.Event) -> None:
    async with mine:
        await all_hold.wait()
        await asyncio.sleep(86_400)


async def wants(lock: asyncio.Lock, all_hold: asyncio.Event) -> None:
    await all_hold.wait()
    async with lock:
        pass


async def wants_again(lock: asyncio.Lock) -> None:
    async with lock, lock:
        pass


async def waits_for_child(lock: asyncio.Lock) -> None:
    async def child() -> None:
        async with lock:
            pass

    async with lock:
        await asyncio.create_task(child(), name="child")


async def main() -> None:
    locks = [asyncio.Lock() for _ in range(3)]
    event = asyncio.Event()
    start = asyncio.create_task
    if scene == "cycle":
        tasks = [start(holds_and_wants(locks[i], locks[1 - i], event), name=f"t{i}") for i in range(2)]
        tasks.append(start(wants(locks[0], event), name="behind"))
    elif scene == "ring":
        tasks = [start(holds_and_wants(locks[i], locks[(i + 1) % 3], event), name=f"t{i}") for i in range(3)]
    elif scene == "again":
        tasks = [start(wants_again(locks[0]), name="t0")]
    elif scene == "child":
        tasks = [start(waits_for_child(locks[0]), name="t0")]
    elif scene == "timed":
        tasks = [start(holds_and_wants_timed(locks[i], locks[1 - i], event), name=f"t{i}") for i in range(2)]
    elif scene == "chain":
        tasks = [start(holds_and_wants(locks[i], locks[i + 1], event), name=f"t{i}") for i in range(2)]
        tasks.append(start(holds(locks[2], event), name="t2"))
    elif scene == "bare":
        # Taken by a bare acquire(): nobody can be told to have them.
        for lock in locks:
            await lock.acquire()
        tasks = [start(wants(lock, event), name="t") for lock in locks]
    else:
        sys.exit(2)
    await asyncio.sleep(0.05)
    event.set()
    await asyncio.sleep(0.05)
    print("ready", flush=True)
    await asyncio.wait(tasks)


asyncio.run(main())
