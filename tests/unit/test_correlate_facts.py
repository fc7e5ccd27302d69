"""Edges, clients, requests, hops, unknowns."""

from __future__ import annotations

from freezeframe.judge.correlate import correlate
from freezeframe.judge.model import Outcome, Request
from tests.support.scene import Scene


def test_edges_add_up():
    scene = Scene()
    client, router = scene.client(), scene.router()
    scene.owed(client, router, 3, age_ms=4_000)
    scene.streams(client, router, 2, bytes_moved=500)
    scene.idle(client, router)
    scene.unread("10.0.0.9", router, 2, age_ms=1_500)
    first, second = correlate([scene.snapshot()]).edges
    assert (first.client_pid, first.server_pid, first.connections, first.owed, first.moving) == (
        client,
        router,
        6,
        3,
        2,
    )
    assert (first.oldest_owed_age_ms, first.bytes_down_delta, first.bytes_up_delta) == (4_000, 1_000, 0)
    assert (second.client_pid, second.client_address, second.unread_by_server) == (None, "10.0.0.9", 2)


def test_with_one_look_nothing_is_said_to_move():
    scene = Scene(window_ms=0)
    scene.streams(scene.client(), scene.router())
    facts = correlate([scene.snapshot()])
    (edge,) = facts.edges
    assert (edge.bytes_up_delta, edge.bytes_down_delta, edge.moving) == (None, None, None)
    assert facts.clients[0].bytes_per_s is None


def test_the_group_is_named_or_has_most_of_the_stuck():
    scene = Scene()
    one, two, router = scene.client("one.py"), scene.client("two.py"), scene.router()
    scene.owed(one, router, 4, age_ms=4_000)
    scene.owed(two, router, 5, age_ms=4_000)
    facts = correlate([scene.snapshot()])
    assert (facts.group, facts.group_reason) == (two, "most stuck requests")
    scene.owed(one, router, 1, age_ms=4_000)
    facts = correlate([scene.snapshot()])
    assert facts.group is None
    assert facts.group_reason.startswith("ambiguous: no client owns most of the 10 stuck requests")
    assert any("ambiguous" in unknown for unknown in scene.verdict().unknowns)


def test_a_stray_streams_and_a_scraper_does_not():
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    stray = scene.client("stray.py")
    scene.owed(harness, router, 30, age_ms=4_000)
    scene.streams(stray, engine)
    scene.served("10.0.0.9", engine)
    clients = {c.name: (c.stray, c.bypasses_router, c.in_flight) for c in correlate([scene.snapshot()]).clients}
    assert clients == {
        "harness.py": (False, False, 30),
        "stray.py": (True, True, 1),
        "10.0.0.9": (False, True, 0),
    }


def test_clients_of_the_configuration_matter_and_none_of_them_is_a_stray():
    def group(scene: Scene) -> tuple[str, str, list[str]]:
        one, two, router, engine = scene.client("one.py"), scene.client("two.py"), scene.router(), scene.engine()
        scene.owed(one, router, 4, age_ms=4_000)
        scene.owed("10.0.0.7", router, 5, age_ms=4_000)
        scene.streams(two, engine)
        facts = correlate([scene.snapshot()])
        name = next((c.name for c in facts.clients if facts.group in {c.pid, c.name}), "")
        return name, facts.group_reason, [c.name for c in facts.clients if c.stray]

    assert group(Scene()) == ("10.0.0.7", "most stuck requests", ["two.py"])
    assert group(Scene(usual_clients=("one.py",))) == ("one.py", "named by the configuration", ["two.py"])
    assert group(Scene(usual_clients=("two.py", "one.py"))) == ("one.py", "named by the configuration", [])
    assert group(Scene(usual_clients=("nobody",))) == ("10.0.0.7", "most stuck requests", ["two.py"])
    assert group(Scene(client="10.0.0.7", usual_clients=("one.py",))) == ("10.0.0.7", "named", ["two.py"])


def test_tokens_that_were_not_counted_beside_a_stream_are_no_rate():
    scene = Scene()
    router, engine = scene.router(), scene.engine()
    scene.streams(scene.client(), engine)
    scene.gauges(engine, running=1.0)
    scene.idle(scene.client("other.py"), router)
    assert {each.client: each.tokens_per_s for each in scene.verdict().attribution} == {
        "harness.py": None, "other.py": None,
    }  # fmt: skip


def test_ids_of_the_log_are_given_in_order_when_counts_and_ages_agree():
    scene = Scene()
    client, router, engine = scene.client(), scene.router(), scene.engine()
    for number, age_ms in enumerate((9_000, 6_000, 3_000)):
        scene.owed(client, router, age_ms=age_ms)
        scene.owed(router, engine, age_ms=age_ms)
        scene.logged(router, f"bench-{number}", age_ms + 400)
    requests = correlate([scene.snapshot()]).requests
    at_router = [r for r in requests if r.pid == router]
    assert [(r.request_id, r.age_ms, r.joined_by) for r in at_router] == [
        ("bench-0", 9_000, "order"),
        ("bench-1", 6_000, "order"),
        ("bench-2", 3_000, "order"),
    ]
    for request in at_router:
        (ref,) = request.upstream
        upstream = requests[int(ref[len("requests[") : -1])]
        assert (upstream.pid, upstream.age_ms) == (engine.http, request.age_ms)
    assert all(r.at_least and r.source == "socket" and r.side is Request.Side.SERVER for r in requests)
    scene.logged(router, "abandoned", 90_000)
    assert not any(r.request_id for r in correlate([scene.snapshot()]).requests)


def test_unknowns_leave_out_what_was_left_out_on_purpose():
    scene = Scene()
    scene.outcomes["sample_metrics"] = Outcome(
        collector="sample_metrics", status=Outcome.Status.SKIPPED, detail="not asked for"
    )
    scene.outcomes["read_logs"] = Outcome(
        collector="read_logs", status=Outcome.Status.SKIPPED, detail="quarantined: pid 7"
    )
    assert correlate([scene.snapshot()]).unknowns == ("read_logs was left out: quarantined: pid 7",)
