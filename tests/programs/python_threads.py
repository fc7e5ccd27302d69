"""A Python program of known threads: python_threads.py PARKED BUSY HOLD TRUTH.json; prints "ready".

PARKED threads wait 5 calls deep, BUSY ones climb and descend f0 to f5 for ever, and with HOLD "gil" one more holds the
interpreter lock in C while the others wait for it. The truth are the frames of the parked ones. Standard library only,
CPython 3.10 to 3.14.
"""

import ctypes
import json
import sys
import threading

PARKED, BUSY, HOLD, TRUTH = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
event = threading.Event()
begun = threading.Barrier(PARKED + BUSY + 1)


class Deep:
    def down(self, left):
        if left:
            return self.down(left - 1)
        return [self.rest(each) for each in (1,)]

    def rest(self, _number):
        event.wait()


def parked():
    begun.wait()
    Deep().down(3)


def f5():
    return 5


def f4():
    return f5()


def f3():
    return f4()


def f2():
    return f3()


def f1():
    return f2()


def f0():
    return f1()


def busy():
    begun.wait()
    while True:
        f0()


def chain(frame):
    """[[function, line], ...] innermost first."""
    found = []
    while frame is not None:
        found.append([frame.f_code.co_name, frame.f_lineno])
        frame = frame.f_back
    return found


def holds():
    """Keep the interpreter lock while asleep in C: PyDLL does not release it."""
    print("ready", flush=True)
    ctypes.PyDLL(None).usleep(600_000_000)


threads = [threading.Thread(target=parked, name=f"parked-{number}", daemon=True) for number in range(PARKED)]
threads += [threading.Thread(target=busy, name=f"busy-{number}", daemon=True) for number in range(BUSY)]
for thread in threads:
    thread.start()
begun.wait()
truth = {}
while len(truth) < PARKED:
    frames = sys._current_frames()
    for thread in threads[:PARKED]:
        found = chain(frames.get(thread.ident))
        # Where it stays: in the lock of the event's condition.
        if [name for name, _ in found[:3]] == ["wait", "wait", "rest"]:
            truth[thread.name] = found
with open(TRUTH, "w") as file:
    json.dump(truth, file)
if HOLD == "gil":
    threading.Thread(target=holds, name="holder", daemon=True).start()
else:
    print("ready", flush=True)
event.wait()
