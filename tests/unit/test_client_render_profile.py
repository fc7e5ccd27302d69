from __future__ import annotations

from google.protobuf import text_format

from freezeframe.client.render import text
from freezeframe.client.render.document import Section
from freezeframe.client.render.sections.profile import profile
from freezeframe.client.render.style import Style
from freezeframe.v1 import snapshot_pb2

SNAPSHOT = """
ranks { pid: 7 rank: "TP1" }
profile { pid: 8 tid: 9 name: "poller" hz: 49 duration_ms: 2000 cpu_ms: 20 waits { reason: "epoll_wait" share: 0.99 } }
profile { pid: 7 tid: 7 name: "sglang::schedul" hz: 49 duration_ms: 2000 cpu_ms: 1980 doubt: "3 samples were cut"
  stacks { samples: 90
    frames { function: "add_one_req" file: "policy.py" line: 5 python: true }
    frames { function: "event_loop" file: "scheduler.py" line: 9 python: true }
    frames { function: "main" file: "python3" } }
  stacks { samples: 10
    frames { function: "event_loop" file: "scheduler.py" line: 9 python: true }
    frames { function: "main" file: "python3" } } }
"""


def test_the_busiest_thread_first_with_its_loop() -> None:
    blocks = profile(text_format.Parse(SNAPSHOT, snapshot_pb2.Snapshot()))
    page = text.render((Section(title="Profile", blocks=blocks),), Style(table_width=None))
    assert page.split("\n") == [
        "Profile",
        "  2.0 s at 49 samples a second of CPU time.",
        "  PID  TID  NAME                  CPU  SAMPLES  OFF THE CPU      NOTE",
        "    7    7  sglang::schedul TP1  99 %      100  -                3 samples were cut",
        "    8    9  poller                1 %        0  epoll_wait 99 %",
        "  pid 7, thread 7 sglang::schedul: functions of its samples, callees included",
        "    100 %  event_loop  scheduler.py",
        "    100 %  main  python3",
        "     90 %  add_one_req  policy.py",
        "  pid 7, thread 7 sglang::schedul: 90 % of its samples",
        "    [python] add_one_req  policy.py:5",
        "    [python] event_loop  scheduler.py:9",
        "    main  python3",
        "  pid 7, thread 7 sglang::schedul: 10 % of its samples",
        "    [python] event_loop  scheduler.py:9",
        "    main  python3",
        "",
    ]


def test_nothing_to_show() -> None:
    assert profile(snapshot_pb2.Snapshot()) == ()
