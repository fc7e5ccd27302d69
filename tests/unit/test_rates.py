from __future__ import annotations

from freezeframe.agentd.rates import Rates


def test_a_peer_has_its_burst_then_its_rate_and_others_have_theirs() -> None:
    now = [100.0]
    rates = Rates(3, 2.0, lambda: now[0])
    assert [rates.take("a") for _ in range(4)] == [True, True, True, False]
    assert rates.take("b")
    now[0] += 0.5
    assert [rates.take("a") for _ in range(2)] == [True, False]
    now[0] += 3600.0
    assert [rates.take("a") for _ in range(4)] == [True, True, True, False]


def test_any_number_of_peers_takes_bounded_memory() -> None:
    rates = Rates(1, 0.0, lambda: 0.0)
    for number in range(10_000):
        assert rates.take(f"peer {number}")
    assert len(rates._buckets) == 4096
    # The latest are remembered.
    assert not rates.take("peer 9999")
