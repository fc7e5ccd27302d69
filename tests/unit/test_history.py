from __future__ import annotations

import math

from freezeframe.agentd.recorder.history import History, Key, Told

ONE, TWO = Key("answer bytes", "", 2, 1), Key("cpu", "", 2)


def test_samples_from_the_first_that_was_not_0_to_now() -> None:
    history = History(samples=5)
    for value in (0.0, 0.0, 7.0, 8.0, 0.0):
        history.add({ONE: value})
    assert history.tell() == [Told(key=ONE, values=[7.0, 8.0, 0.0], last_nonzero_s=1.0)]


def test_the_oldest_samples_go_and_a_series_goes_with_its_last_value() -> None:
    history = History(samples=3)
    for value in (1.0, 2.0, 3.0, 4.0):
        history.add({ONE: value})
    assert history.tell() == [Told(key=ONE, values=[2.0, 3.0, 4.0], last_nonzero_s=0.0)]
    for _ in range(2):
        history.add({ONE: 0.0})
    assert history.tell() == [Told(key=ONE, values=[4.0, 0.0, 0.0], last_nonzero_s=2.0)]
    history.add({ONE: 0.0})
    assert history.tell() == []


def test_a_second_without_a_value_has_none() -> None:
    history = History(samples=3)
    history.add({ONE: 1.0, TWO: 5.0})
    history.add({TWO: 5.0})
    (one, _) = history.tell()
    assert one.key == ONE
    assert one.values[0] == 1.0
    assert math.isnan(one.values[1])


def test_a_bounded_number_of_series_those_silent_for_long_give_way() -> None:
    history = History(samples=20, max_series=2)
    history.add({Key("cpu", "", 1): 1.0, Key("cpu", "", 2): 1.0})
    history.add({Key("cpu", "", 1): 1.0, Key("cpu", "", 3): 1.0})
    assert [told.key.pid for told in history.tell()] == [1, 2]
    assert history.lost == 1
    history.add({Key("cpu", "", 1): 1.0, Key("cpu", "", 3): 1.0})
    assert [told.key.pid for told in history.tell()] == [1, 3]
