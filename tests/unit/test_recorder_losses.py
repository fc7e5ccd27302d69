from __future__ import annotations

from freezeframe.agentd.recorder.losses import Losses


def test_what_was_lost_within_a_minute_is_told_and_nothing_older() -> None:
    losses = Losses()
    losses.note(0.0, {"lost_requests": 0, "lost_heads": 5})
    assert losses.lately(0.0) == {}
    losses.note(10.0, {"lost_requests": 2, "lost_connections": 1, "lost_heads": 9})
    losses.note(20.0, {"lost_requests": 5, "lost_connections": 1})
    assert losses.lately(20.0) == {"lost_requests": 5, "lost_connections": 1}
    losses.note(30.0, {"lost_requests": 5, "lost_connections": 1})
    assert losses.lately(70.0) == {"lost_requests": 5, "lost_connections": 1}
    assert losses.lately(70.5) == {"lost_requests": 3}
    assert losses.lately(80.5) == {}
    losses.note(90.0, {"lost_requests": 6})
    assert losses.lately(90.0) == {"lost_requests": 1}
