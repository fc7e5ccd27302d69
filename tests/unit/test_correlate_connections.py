from __future__ import annotations

from dataclasses import replace

import pytest

from freezeframe.judge.correlate import correlate
from freezeframe.judge.correlate.facts import Connection, Debt
from freezeframe.judge.model import Socket
from tests.support.scene import Scene


def only(scene: Scene) -> Connection:
    (connection,) = correlate([scene.snapshot()]).connections
    return connection


def routed(window_ms: float = 1000.0) -> tuple[Scene, int, int]:
    scene = Scene(window_ms=window_ms)
    return scene, scene.client(), scene.router()


def change(scene: Scene, owner: int, **fields: object) -> None:
    scene.sockets = [replace(s, **fields) if s.state != "LISTEN" and s.pid == owner else s for s in scene.sockets]


@pytest.mark.parametrize(
    ("make", "debt", "age_ms"),
    [
        (lambda s, c, r: s.owed(c, r, age_ms=2_000), Debt.ANSWER, 2_000),
        (lambda s, c, r: s.idle(c, r, age_ms=2_000), Debt.NONE, None),
        (lambda s, c, r: s.streams(c, r), Debt.NONE, None),
        (lambda s, c, r: s.unread(c, r, age_ms=2_000), Debt.UNREAD, 2_000),
        (lambda s, c, r: s.unaccepted(c, r, age_ms=2_000), Debt.UNACCEPTED, 2_000),
        (lambda s, c, r: s.untaken(c, r, age_ms=2_000), Debt.UNDELIVERED, 2_000),
        (lambda s, c, r: s.answered_and_closed(c, r, age_ms=2_000), Debt.UNDELIVERED, 2_000),
    ],
)
def test_debt(make, debt, age_ms):
    scene, client, router = routed()
    make(scene, client, router)
    connection = only(scene)
    assert (connection.debt, connection.age_ms) == (debt, age_ms)
    assert (connection.client_pid, connection.server_pid, connection.agreed) == (client, router, True)
    assert connection.refs == ("sockets[1]", "sockets[2]")


def test_ends_that_disagree_owe_nothing_that_is_known():
    scene, client, router = routed()
    scene.owed(client, router, age_ms=2_000)
    change(scene, client, last_in_age_ms=5.0)
    assert only(scene).debt is Debt.UNKNOWN


def test_equal_ages_are_decided_by_the_client():
    scene, client, router = routed()
    scene.owed(client, router, age_ms=2_000)
    change(scene, router, last_out_age_ms=2_000)
    assert only(scene).debt is Debt.ANSWER


def test_a_client_that_has_gone_is_owed_nothing():
    scene, client, router = routed()
    scene.owed(client, router, age_ms=2_000)
    change(scene, router, state="CLOSE-WAIT")
    change(scene, client, state="FIN-WAIT-2", pid=None, inode=0)
    connection = only(scene)
    assert (connection.debt, connection.closed_by_client) == (Debt.NONE, True)


def test_a_connection_seen_at_one_of_two_looks_is_young():
    scene, client, router = routed()
    scene.owed(client, router, age_ms=50_000)
    change(scene, client, lasting=False)
    assert only(scene).age_ms == 0


def test_mapped_addresses_join():
    scene, client, router = routed()
    scene.owed(client, router, age_ms=2_000)
    change(scene, router, local="[::ffff:127.0.0.1]:30000", remote="[::ffff:127.0.0.1]:40001")
    connection = only(scene)
    assert (connection.client_pid, connection.server_pid, connection.server_address) == (
        client,
        router,
        "127.0.0.1:30000",
    )


def test_upstream_on_another_host():
    scene, _, router = routed()
    scene.sockets.append(
        Socket(
            family="tcp",
            state="ESTAB",
            local="10.0.0.1:41000",
            remote="10.0.0.7:30000",
            pid=router,
            inode=77,
            last_out_age_ms=9_000,
            lasting=True,
        )
    )
    connection = only(scene)
    assert (connection.client_pid, connection.server_pid, connection.server_address) == (router, None, "10.0.0.7:30000")
    assert (connection.debt, connection.agreed) == (Debt.ANSWER, False)


def test_what_is_left_out():
    scene, client, router = routed()
    prefill, decode = scene.engine("prefill"), scene.engine("decode")
    scene.owed("127.70.70.70", router, age_ms=9_000)  # the agent's own question
    scene.owed(decode, prefill, age_ms=9_000)  # bootstrap
    scene.owed(client, router, age_ms=9_000)
    assert only(scene).client_pid == client


def test_unaccepted_without_a_backlog_is_none():
    scene, client, router = routed()
    scene.unaccepted(client, router, age_ms=2_000)
    scene.backlog(router, -1)
    assert only(scene).debt is Debt.NONE


def test_one_host_at_a_time():
    with pytest.raises(ValueError, match="2 snapshots"):
        correlate([Scene().snapshot(), Scene().snapshot()])


def apart(scene: Scene, client: int, router: int, **server: object) -> None:
    """Put the two ends in network namespaces of their own, joined as the agent joins them."""
    change(scene, client, netns=7.0, inode=71, peer_inode=81)
    change(scene, router, netns=8.0, inode=81, peer_inode=71, **server)
    scene.sockets = [replace(s, netns=8.0) if s.state == "LISTEN" else s for s in scene.sockets]


def test_ends_in_different_namespaces_are_one_connection():
    scene, client, router = routed()
    scene.owed(client, router, age_ms=2_000)
    apart(scene, client, router)
    connection = only(scene)
    assert (connection.client_pid, connection.server_pid, connection.debt) == (client, router, Debt.ANSWER)
    assert connection.agreed


def test_ends_of_a_published_port_are_one_connection_although_their_addresses_differ():
    scene, client, router = routed()
    scene.owed(client, router, age_ms=2_000)
    apart(scene, client, router, remote="172.17.0.1:61000")
    connection = only(scene)
    assert (connection.client_pid, connection.server_pid, connection.debt) == (client, router, Debt.ANSWER)


def test_a_published_port_where_the_server_end_waits_to_be_accepted():
    scene, client, router = routed()
    scene.unaccepted(client, router, age_ms=2_000)
    (listener,) = [s for s in scene.sockets if s.state == "LISTEN"]
    scene.sockets = [
        replace(s, netns=8.0) if s.state == "LISTEN"
        else replace(s, netns=7.0, inode=71, peer_inode=None) if s.pid == client
        else replace(s, netns=8.0, inode=0, peer_inode=71, remote="172.17.0.1:61000")
        for s in scene.sockets
    ]  # fmt: skip
    connection = only(scene)
    assert (connection.client_pid, connection.server_pid, connection.debt) == (client, listener.pid, Debt.UNACCEPTED)


def test_equal_loopback_addresses_in_two_namespaces_are_two_connections():
    scene, client, router = routed()
    scene.owed(client, router, age_ms=2_000)
    ends = [s for s in scene.sockets if s.state != "LISTEN"]
    # In another namespace, a process of another stack has the same pair of addresses, and its peer was not seen.
    (outer,) = [s for s in ends if s.pid == client]
    stranger = replace(outer, netns=9.0, inode=91, peer_inode=None, peer_pid=None, pid=router)
    scene.sockets = [s for s in scene.sockets if s is not outer] + [stranger]
    found = correlate([scene.snapshot()]).connections
    assert {(c.client_index is None, c.server_index is None) for c in found} == {(True, False), (False, True)}
