from __future__ import annotations

from freezeframe.agentd.cross_check import merged
from freezeframe.agentd.host.cpython.frames import Code, Place, short_path
from freezeframe.agentd.host.cpython.stacks import WalkedThread
from freezeframe.agentd.host.cpython.threads import StackFrame
from freezeframe.judge.model import Frame, PythonThread

CODE = Code(address=1, function="", name="", file="", first_line=1, table=b"", name_tuples=())


def walked(function: str, file: str, line: int) -> StackFrame:
    return StackFrame(place=Place(function=function, file=file, line=line), code=CODE, address=1)


WALKED = WalkedThread(
    tid=7,
    name="loop",
    frames=(
        walked("Event.wait", "/usr/lib/python3.11/threading.py", 12),
        walked("serve", "/srv/app.py", 3),
    ),
    holds_gil=False,
    waits_for_gil=True,
    running=False,
    doubt="",
    switches=5,
)
SPIED = PythonThread(
    pid=1,
    tid=7,
    name="loop",
    frames=(
        Frame(function="wait", file="threading.py", line=12),
        Frame(function="serve", file="app.py", line=3),
    ),
)
OTHER = (Frame(function="select", file="selectors.py", line=9), Frame(function="serve", file="app.py", line=4))


def one(walked: WalkedThread, spied: PythonThread, *, still: bool = True) -> PythonThread:
    (thread,) = merged(1, (walked,), (spied,), lambda _thread: still)
    return thread


def test_two_that_agree_are_one_without_doubt() -> None:
    thread = one(WALKED, SPIED)
    assert (thread.source, thread.doubt, thread.waits_for_gil) == ("both", "", True)
    assert thread.frames[0] == Frame(function="Event.wait", file="threading.py", line=12)
    running = WalkedThread(**{**{name: getattr(WALKED, name) for name in WALKED.__dataclass_fields__}, "doubt": "ran"})
    assert one(running, SPIED).doubt == ""


def test_what_differs_over_a_thread_that_stood_still_is_a_doubt() -> None:
    differs = PythonThread(pid=1, tid=7, name="loop", frames=OTHER)
    thread = one(WALKED, differs)
    assert (thread.source, thread.frames[1].line) == ("walker", 3)
    assert thread.doubt == "py-spy shows select (selectors.py:9) < serve (app.py:4)"
    # One that ran meanwhile may be elsewhere.
    assert one(WALKED, differs, still=False).doubt == ""


def test_a_torn_walk_gives_way_to_the_other_and_both_are_told() -> None:
    torn = WalkedThread(**{**{name: getattr(WALKED, name) for name in WALKED.__dataclass_fields__}, "doubt": "it ran"})
    thread = one(torn, PythonThread(pid=1, tid=7, name="loop", frames=OTHER))
    assert (thread.source, thread.frames) == ("py-spy", OTHER)
    assert thread.doubt == "it ran; our own walk shows Event.wait (threading.py:12) < serve (/srv/app.py:3)"


def test_those_that_one_reader_alone_knows() -> None:
    nameless = PythonThread(pid=1, tid=0, name="0x7f", frames=OTHER)
    found = merged(1, (WALKED,), (nameless,), lambda _thread: True)
    assert [(each.name, each.source) for each in found] == [("0x7f", "py-spy"), ("loop", "walker")]


def test_without_an_id_the_name_joins_when_it_is_the_only_one() -> None:
    unknown = PythonThread(pid=1, tid=0, name="loop", frames=SPIED.frames)
    assert one(WALKED, unknown).source == "both"
    twin = WalkedThread(**{**{name: getattr(WALKED, name) for name in WALKED.__dataclass_fields__}, "tid": 8})
    found = merged(1, (WALKED, twin), (unknown,), lambda _thread: True)
    assert [each.source for each in found] == ["py-spy", "walker", "walker"]


def test_paths_are_told_below_the_folder_of_imports() -> None:
    assert short_path("/opt/venv/lib/python3.11/site-packages/starlette/routing.py") == "starlette/routing.py"
    assert short_path("/usr/lib/python3/dist-packages/a/b.py") == "a/b.py"
    assert short_path("/usr/lib/python3.12/asyncio/locks.py") == "asyncio/locks.py"
    assert short_path("/srv/app.py") == "/srv/app.py"
    assert short_path("<frozen runpy>") == "<frozen runpy>"
