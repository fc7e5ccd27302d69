from __future__ import annotations

from freezeframe.agentd.last_gpus import LastGpus
from freezeframe.judge.model import Gpu

ONE = Gpu(index=0, name="H200", power_watts=700.0)
TWO = Gpu(index=1, name="H200", power_watts=70.0)


def test_one_that_went_silent_is_shown_as_it_was_with_its_age() -> None:
    last = LastGpus()
    assert last.complete((TWO, ONE), 10.0, asked=True) == (ONE, TWO)
    silent = Gpu(index=1, error="no answer in 800 ms, asked for power")
    assert last.complete((ONE, silent), 12.5, asked=True) == (
        ONE,
        Gpu(index=1, name="H200", power_watts=70.0, error="no answer in 800 ms, asked for power", age_ms=2500.0),
    )


def test_a_driver_that_says_nothing_at_all() -> None:
    last = LastGpus()
    last.complete((ONE,), 10.0, asked=True)
    old = Gpu(index=0, name="H200", power_watts=700.0, error="no answer in this capture", age_ms=1000.0)
    assert last.complete((), 11.0, asked=True) == (old,)
    assert last.complete((), 11.0, asked=False) == ()


def test_an_answer_with_an_error_is_newer_than_a_good_one() -> None:
    last = LastGpus()
    last.complete((ONE,), 10.0, asked=True)
    now = Gpu(index=0, name="H200", error="temperature: Unknown Error (NVML 999)")
    assert last.complete((now,), 11.0, asked=True) == (now,)
    never = Gpu(index=7, error="GPU is lost (NVML 15)")
    assert last.complete((never,), 11.0, asked=False) == (never,)
