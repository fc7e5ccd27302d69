"""A snapshot all of whose texts try to be more than text on a page."""

from __future__ import annotations

from freezeframe.client.report.texts import texts_of
from freezeframe.v1 import snapshot_pb2
from tests.support.story import story

HOSTILE = (
    "<img src=x onerror=document.title='owned'>"
    "</title></style></script></pre></details><script>document.title='owned'</script>"
    "\"'><svg onload=document.title='owned'><a href=javascript:document.title='owned'>&lt;b&gt;<b>"
    "<link rel=stylesheet href=http://127.0.0.1:9/x><iframe src=http://127.0.0.1:9/></iframe>\x1b[2J\u202e"
)


def hostile() -> snapshot_pb2.Snapshot:
    snapshot = story()
    series = snapshot.history.series.add(kind="answer bytes", subject="x", values=[1.0, 2.0, float("nan"), 3.0])
    series.pid = 4711
    snapshot.history.interval_ms = 1000
    snapshot.native_threads.add(pid=4711, tid=1, name="n").frames.add(function="f", module="m", offset=1)
    snapshot.asyncio_tasks.add(pid=4711, name="t", state="pending").frames.add(function="f", file="x", line=1)
    snapshot.gpus.add(index=0, name="gpu", utilization_percent=3)
    for texts, _, name, put in list(texts_of(snapshot)):
        # These tie the parts together.
        if name not in {"next", "ref", "talks_to"}:
            put([f"{text}{HOSTILE}" for text in texts])
    return snapshot
