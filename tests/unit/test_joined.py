"""Snapshots of several hosts, made one."""

from __future__ import annotations

from dataclasses import fields, replace

from freezeframe.judge import model
from freezeframe.judge.correlate import correlate_joined
from freezeframe.judge.correlate.facts import Debt
from freezeframe.judge.correlate.joined import PID_FIELDS, PIDS, at_instant, join_hosts, number_of, own_pid
from freezeframe.judge.model import Gpu, GpuProcess, Meta, Metric, Outcome, Process, Snapshot, Socket
from tests.support.cut import cut
from tests.support.scene import Scene

Role = Process.Role
Status = Outcome.Status
# They name no process of the snapshot, or are made anew from joined records.
NOT_MOVED = {
    "AsyncioTask": set(),
    "Attribution": {"pid"},
    "Edge": {"client_pid", "server_pid"},
    "Hop": {"pids"},
    "Process": {"container_pid"},
    "Rank": {"pid", "engine_pid"},
    "Verdict": {"holder_pids"},
}


def test_every_field_that_names_a_process_is_known() -> None:
    for name in model.__all__:
        kind = getattr(model, name)
        if not hasattr(kind, "__dataclass_fields__"):
            continue
        pids = {f.name for f in fields(kind) if f.name.endswith(("pid", "pids", "shared_with", "pids_missed"))}
        assert pids == {*PID_FIELDS.get(kind, ()), *NOT_MOVED.get(name, set())}, name


def two() -> tuple[Snapshot, Snapshot]:
    """A harness on one host, a router on the other, which owes it 2 answers."""
    scene = Scene()
    scene.owed(scene.client(), scene.router(), 2, age_ms=5_000)
    parts = cut(scene.snapshot())
    return parts["clients"], parts["routers"]


def test_pids_tell_their_host() -> None:
    joined = join_hosts(two())
    (client, router) = (p.pid for p in joined.snapshot.processes)
    assert (client, router) == (PIDS + 101, 2 * PIDS + 102)
    assert [(number_of(pid), own_pid(pid)) for pid in (client, router)] == [(1, 101), (2, 102)]
    assert joined.first["sockets"] == (0, 2)


def test_the_largest_fleet_has_pids_that_the_wire_holds() -> None:
    assert 1000 * PIDS + PIDS - 1 < 1 << 32


def test_both_ends_of_a_connection_between_hosts_are_joined() -> None:
    facts = correlate_joined(join_hosts(two()))
    assert [(c.client_pid, c.server_pid, c.debt, c.agreed) for c in facts.connections] == [
        (PIDS + 101, 2 * PIDS + 102, Debt.ANSWER, True)
    ] * 2
    assert facts.unknowns == ()


def test_an_end_that_waits_to_be_accepted_belongs_to_its_listener() -> None:
    scene = Scene()
    scene.unaccepted(scene.client(), scene.router(), 3, age_ms=5_000)
    parts = cut(scene.snapshot())
    joined = join_hosts([parts["clients"], parts["routers"]])
    assert {s.peer_pid for s in joined.snapshot.sockets if s.pid == PIDS + 101} == {2 * PIDS + 102}
    assert [c.debt for c in correlate_joined(joined).connections] == [Debt.UNACCEPTED] * 3


def test_a_server_address_that_the_way_changes_is_told_by_the_clients_own() -> None:
    client, router = two()
    service = tuple(replace(s, remote="10.96.0.1:80") for s in client.sockets)
    facts = correlate_joined(join_hosts([replace(client, sockets=service), router]))
    assert [(c.client_pid, c.server_pid) for c in facts.connections] == [(PIDS + 101, 2 * PIDS + 102)] * 2


def test_a_client_address_that_the_way_changes_leaves_two_ends_and_is_said() -> None:
    client, router = two()
    seen = tuple(replace(s, remote=s.remote.replace("10.0.0.1", "192.0.2.9")) for s in router.sockets)
    facts = correlate_joined(join_hosts([client, replace(router, sockets=seen)]))
    assert {(c.client_pid, c.client_address, c.server_pid) for c in facts.connections} == {
        (None, "192.0.2.9", 2 * PIDS + 102)
    }
    (sentence,) = facts.unknowns
    assert sentence == (
        "2 of the connections of clients to 10.0.0.2:30000 have no other end on routers: it is closed there, or their "
        "addresses are translated on the way"
    )


def test_the_same_private_addresses_on_two_hosts_join_nothing() -> None:
    client, router = two()
    facts = correlate_joined(join_hosts([client, client, router]))
    assert all(c.client_pid is None for c in facts.connections)


def test_loopback_of_two_hosts_stays_apart() -> None:
    scene = Scene()
    scene.owed(scene.client(), scene.router(), 1, age_ms=5_000)
    facts = correlate_joined(join_hosts([scene.snapshot(), scene.snapshot()]))
    assert [(c.client_pid, c.server_pid) for c in facts.connections] == [
        (PIDS + 101, PIDS + 102),
        (2 * PIDS + 101, 2 * PIDS + 102),
    ]


def test_what_one_host_missed_is_not_missed_of_another() -> None:
    client, router = two()
    lost = tuple(
        replace(o, status=Status.TIMED_OUT, detail="looking") if o.collector == "read_logs" else o
        for o in router.outcomes
    )
    facts = correlate_joined(join_hosts([client, replace(router, outcomes=lost)]))
    assert not facts.collected("read_logs")
    assert facts.collected("read_logs", (PIDS + 101,))
    assert not facts.collected("read_logs", (2 * PIDS + 102,))
    assert facts.collected("snapshot_sockets")
    assert facts.unknowns == ("routers: read_logs ran out of time: looking",)


def test_records_in_records_are_moved_too() -> None:
    gpu = Gpu(index=0, processes=(GpuProcess(pid=7, memory_bytes=1.0),))
    part = Snapshot(meta=Meta(host="a"), gpus=(gpu,), metrics=(Metric(name="of nobody"),))
    joined = join_hosts([Snapshot(meta=Meta(host="b")), part]).snapshot
    assert joined.gpus[0].processes[0].pid == 2 * PIDS + 7
    assert joined.metrics[0].pid == 0


def test_ages_of_who_looked_later_are_lessened() -> None:
    socket = Socket(family="tcp", last_in_age_ms=5_000.0, last_out_age_ms=300.0, bytes_in=7.0)
    earlier = at_instant(Snapshot(sockets=(socket,), processes=(Process(pid=1, age_ms=9_000.0),)), 2_000.0)
    assert earlier.sockets[0] == replace(socket, last_in_age_ms=3_000.0, last_out_age_ms=0.0)
    assert earlier.processes[0].age_ms == 7_000.0
