from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freezeframe.agentd.host.exposition import MAX_SERIES, parse_loads, parse_metrics, parse_workers


def values(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    metrics, left_out = parse_metrics(text.encode(), 7, "http x")
    assert left_out == 0
    assert {(one.pid, one.source) for one in metrics} <= {(7, "http x")}
    return {(one.name, one.labels): one.value for one in metrics}


def test_gauges_counters_and_counts_without_buckets() -> None:
    text = """
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{tp_rank="0",model_name="m"} 29.0
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{tp_rank="0"} 104729.0
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{le="1.0"} 3.0
vllm:iteration_tokens_total_bucket{le="+Inf"} 17.0
vllm:iteration_tokens_total_count 17.0
vllm:iteration_tokens_total_sum 1009.0
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total 5.0
"""
    assert values(text) == {
        ("sglang:num_running_reqs", (("model_name", "m"), ("tp_rank", "0"))): 29.0,
        ("sglang:generation_tokens_total", (("tp_rank", "0"),)): 104729.0,
        ("vllm:iteration_tokens_total_count", ()): 17.0,
        ("vllm:iteration_tokens_total_sum", ()): 1009.0,
    }


def test_a_gauge_called_count_with_its_own_bounds_is_kept() -> None:
    text = 'smg_http_inflight_request_age_count{gt="60",le="180"} 30\n'
    assert values(text) == {("smg_http_inflight_request_age_count", (("gt", "60"), ("le", "180"))): 30.0}


def test_labels_that_say_who_asked_are_dropped_and_their_series_added_up() -> None:
    text = (
        'sglang:num_requests_total{user="ann",tp_rank="0"} 13\nsglang:num_requests_total{user="bob",tp_rank="0"} 17\n'
    )
    assert values(text) == {("sglang:num_requests_total", (("tp_rank", "0"),)): 30.0}


def test_a_worker_url_loses_its_password() -> None:
    text = 'smg_worker_health{worker="http://ann:secret@10.0.0.5:30000?key=x"} 1\n'
    assert values(text) == {("smg_worker_health", (("worker", "http://10.0.0.5:30000"),)): 1.0}


def test_series_past_the_cap_are_counted() -> None:
    text = "".join(f'smg_x{{worker="http://h:{number}"}} 1\n' for number in range(MAX_SERIES + 11))
    metrics, left_out = parse_metrics(text.encode(), 7, "")
    assert (len(metrics), left_out) == (MAX_SERIES, 11)


def test_workers_of_a_router() -> None:
    text = json.dumps(
        {
            "workers": [
                {"id": "a", "url": "http://u:p@h:1", "is_healthy": True, "load": 19, "worker_type": "prefill"},
                {"id": "b", "url": "http://h:2", "is_healthy": False, "load": -1},
                {"url": 5},
                "x",
            ],
            "total": 2,
        }
    )
    assert [(one.name, one.labels, one.value) for one in parse_workers(text.encode(), 7, "")] == [
        ("router_worker_healthy", (("worker", "http://h:1"), ("worker_type", "prefill")), 1.0),
        ("router_worker_load", (("worker", "http://h:1"), ("worker_type", "prefill")), 19.0),
        ("router_worker_healthy", (("worker", "http://h:2"),), 0.0),
        ("router_worker_load", (("worker", "http://h:2"),), -1.0),
    ]


def test_loads_of_sglang_carry_their_age() -> None:
    text = json.dumps(
        {
            "loads": [
                {
                    "dp_rank": 1,
                    "timestamp": 970.0,
                    "num_running_reqs": 3,
                    "prompt": "never",
                    "queues": {"waiting": 7, "secret": 1},
                    "disaggregation": {"mode": "decode", "decode_transfer_queue_reqs": 11},
                }
            ]
        }
    )
    assert [(one.name, one.labels, one.value, one.age_ms) for one in parse_loads(text.encode(), 7, "", 1000.0)] == [
        ("load_num_running_reqs", (("dp_rank", "1"),), 3.0, 30_000.0),
        ("load_queues_waiting", (("dp_rank", "1"),), 7.0, 30_000.0),
        ("load_disaggregation_decode_transfer_queue_reqs", (("dp_rank", "1"),), 11.0, 30_000.0),
    ]


@pytest.mark.parametrize("text", [b"", b"[1]", b"{", b'{"workers":3}', b"\xff", b"[" * 100_000])
def test_what_is_not_the_expected_json_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="parsing"):
        parse_workers(text, 7, "")
    with pytest.raises(ValueError, match="parsing"):
        parse_loads(text, 7, "", 0.0)


_LINE = st.from_regex(r'sglang:[a-z{}="\\# ,0-9eE+.-]{0,40}\n?', fullmatch=True)


@given(st.one_of(st.binary(max_size=300), st.lists(_LINE).map(lambda lines: "".join(lines).encode())))
def test_any_text_gives_metrics_or_one_error(text: bytes) -> None:
    with contextlib.suppress(ValueError):
        for one in parse_metrics(text, 7, "")[0]:
            assert one.name.isprintable()


@given(
    st.recursive(
        st.none() | st.floats() | st.integers() | st.text(),
        lambda x: (
            st.lists(x)
            | st.dictionaries(
                st.sampled_from(["loads", "workers", "url", "load", "timestamp", "num_running_reqs", "queues"]), x
            )
        ),
        max_leaves=20,
    )
)
def test_any_json_gives_metrics_or_one_error(answer: object) -> None:
    for text in (json.dumps(answer).encode(), json.dumps({"loads": [answer], "workers": [answer]}).encode()):
        with contextlib.suppress(ValueError):
            parse_loads(text, 7, "", 1000.0)
        with contextlib.suppress(ValueError):
            parse_workers(text, 7, "")
