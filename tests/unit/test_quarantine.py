from __future__ import annotations

import pytest

from freezeframe.agentd.collectors.contract import Collector, Tier
from freezeframe.agentd.quarantine import Abandoned, Quarantine


def collector(name: str, tier: Tier = Tier.MEMORY, *, whole_host: bool = False) -> Collector:
    wants = None if whole_host else lambda _target: True
    return Collector(name=name, tier=tier, collect=lambda _job, _host, _report: None, wants=wants)


def abandoned(worker: int, name: str = "stacks", *targets: int) -> Abandoned:
    return Abandoned(worker_pid=worker, collector=name, targets=frozenset(targets))


def test_a_target_is_barred_for_its_collector_until_the_worker_has_ended() -> None:
    quarantine = Quarantine()
    quarantine.add(abandoned(900, "stacks", 7, 8), Tier.MEMORY)
    reason = "quarantined: worker 900 was killed over it and has not ended"
    assert [quarantine.refusal(collector("stacks"), pid) for pid in (7, 8, 9, 0)] == [reason, reason, "", ""]
    assert quarantine.refusal(collector("argv"), 7) == ""
    quarantine.remove(900)
    quarantine.remove(901)
    assert quarantine.refusal(collector("stacks"), 7) == ""


def test_sixteen_close_the_memory_tier_and_no_other() -> None:
    quarantine = Quarantine()
    for worker in range(15):
        quarantine.add(abandoned(worker + 100, "stacks", worker), Tier.MEMORY)
    for worker in range(40):
        quarantine.add(abandoned(worker + 200, "logs"), Tier.OUTSIDE)
    assert quarantine.refusal(collector("argv"), 99) == ""
    quarantine.add(abandoned(300, "argv"), Tier.MEMORY)
    assert quarantine.refusal(collector("argv"), 99) == (
        "quarantined: 16 killed workers have not ended, stuck in reads of sick processes"
    )
    assert quarantine.refusal(collector("argv")).startswith("quarantined: 16")
    assert quarantine.refusal(collector("metrics", Tier.OUTSIDE), 99) == ""
    assert len(quarantine.workers()) == 56


def test_a_collector_over_the_whole_host_has_one() -> None:
    quarantine = Quarantine()
    metrics = collector("metrics", Tier.OUTSIDE, whole_host=True)
    quarantine.add(abandoned(900, "metrics"), Tier.OUTSIDE)
    assert quarantine.refusal(metrics) == "quarantined: worker 900 was killed and has not ended"
    # One over targets, stuck on none known, only counts.
    assert quarantine.refusal(collector("metrics")) == ""


@pytest.mark.parametrize("whole_host", [True, False])
def test_the_lock_free_tier_is_never_barred(whole_host: bool) -> None:
    quarantine = Quarantine(cap=1)
    processes = collector("processes", Tier.LOCK_FREE, whole_host=whole_host)
    for worker in range(20):
        quarantine.add(abandoned(worker, "processes", 7), Tier.LOCK_FREE)
        quarantine.add(abandoned(worker + 50, "processes"), Tier.MEMORY)
    assert quarantine.refusal(processes) == ""
    assert quarantine.refusal(processes, 7) == ""
