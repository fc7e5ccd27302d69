from __future__ import annotations

import base64
import io
import random
import re
import string
import sysconfig
import tarfile
import uuid
from pathlib import Path

import pytest

from freezeframe.client import files
from freezeframe.client.render import json as render_json
from freezeframe.client.report import bundle, forms, issue, outgoing, page, redact
from freezeframe.client.report.texts import texts_of
from freezeframe.v1 import snapshot_pb2
from tests.support.planted import FORMS, KINDS, PLACES, found, written
from tests.support.story import story


def _planted(text: str, place: str) -> snapshot_pb2.Snapshot:
    snapshot = story()
    process = snapshot.processes[0]
    match place:
        case "argv":
            process.argv[:] = ["python", "serve.py", *text.split("\n"), "--port", "30000"]
        case "environment":
            process.argv[:] = ["env", f"SOME_SETTING={text}", "python"]
        case "url":
            snapshot.requests[0].path = f"/v1/models?x={text}&y=1"
            snapshot.endpoints.add(pid=1, path=f"http://10.0.0.1:1/a?b={text}")
        case "header":
            snapshot.debug_traces.add(text=f"POST / HTTP/1.1\r\nX-Custom: {text}\r\nHost: gpu-07")
        case "log":
            snapshot.log_findings.add(pattern="p", captured={"error": f"upstream said {text} and closed"})
            snapshot.kernel_events.add(text=f"worker: {text}")
        case "path":
            process.exe = f"/srv/{text}/bin/python"
            snapshot.python_threads.add(pid=1).frames.add(function="f", file=f"/srv/{text}/a.py")
        case "comm":
            process.comm = text
            process.threads.add(tid=1, name=text)
        case "local":
            snapshot.debug_traces.add(text=f"  local value = '{text}'")
    return snapshot


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_secret_is_gone(kind: str, form: str, place: str) -> None:
    (clean,) = redact.redact([_planted(written(kind, form), place)], b"key").snapshots
    seen = "".join(_texts(clean))
    assert found(kind, seen) == []
    assert "SECRET-" in seen


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", FORMS)
def test_no_form_of_a_report_holds_a_planted_secret(form: str, place: str) -> None:
    planted = {kind: _planted(written(kind, form), place) for kind in KINDS}
    cleaned = outgoing.clean(tuple(planted.values()), b"key", anonymise=False)
    for kind, raw, clean in zip(planted, planted.values(), cleaned.snapshots, strict=True):
        # What is looked for would be found.
        assert found(kind, "".join(render_json.stream(raw))), kind
        issues = issue.render([clean], forms.PLAIN, "r").encode()
        packed = bundle.pack([clean], issues, page.render([clean], "r").encode(), "r", "w")
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            members = {entry.name: archive.extractfile(entry).read() for entry in archive}
        assert len(members) == 6
        for name, data in members.items():
            text = data if not name.endswith(".ffz") else "\n".join(_texts(*files.parse(data, "it").each())).encode()
            assert found(kind, text.decode()) == [], (kind, name)


def _texts(snapshot: snapshot_pb2.Snapshot) -> list[str]:
    return [text for texts, _, _, _ in texts_of(snapshot) for text in [*texts, "\n"]]


def test_what_names_a_secret_once_takes_it_out_everywhere() -> None:
    snapshot = snapshot_pb2.Snapshot()
    snapshot.processes.add(argv=["smg", "--api-key", "walnut-grove", "--port", "1"])
    snapshot.kernel_events.add(text="walnut-grove, " + base64.b64encode(b"ab:walnut-grove").decode())
    redacted = redact.redact([snapshot], b"key")
    (clean,) = redacted.snapshots
    (token,) = (token for token, value in redacted.tokens.items() if value == "walnut-grove")
    assert clean.processes[0].argv == ["smg", "--api-key", token, "--port", "1"]
    assert clean.kernel_events[0].text.startswith(f"{token}, SECRET-")
    assert snapshot.processes[0].argv[2] == "walnut-grove"


def test_a_query_and_a_cookie_lose_their_values() -> None:
    snapshot = snapshot_pb2.Snapshot()
    snapshot.requests.add(path="/generate?stream=true&user=maria&n=2")
    snapshot.debug_traces.add(text="Cookie: a=bcdef; session=12345678\nHost: gpu-07")
    (clean,) = redact.redact([snapshot], b"key").snapshots
    assert re.fullmatch(r"/generate\?stream=true&user=SECRET-\w{10}&n=2", clean.requests[0].path)
    assert re.fullmatch(r"Cookie: SECRET-\w{10}\nHost: gpu-07", clean.debug_traces[0].text)


def test_a_secret_broken_over_two_records_of_a_log_is_gone() -> None:
    snapshot = snapshot_pb2.Snapshot()
    for text in ("key ghp_abcdef123456ABC", "DEF123456789abcdefgh tail", "12:01 next"):
        snapshot.kernel_events.add(text=text)
    (clean,) = redact.redact([snapshot], b"key").snapshots
    first, second, third = (event.text for event in clean.kernel_events)
    assert re.fullmatch(r"key SECRET-\w{10}", first)
    assert re.fullmatch(r"SECRET-\w{10} tail", second)
    assert third == "12:01 next"


def test_the_beginning_of_a_secret_in_the_name_of_a_thread_is_gone() -> None:
    snapshot = snapshot_pb2.Snapshot()
    process = snapshot.processes.add(argv=["smg", "--api-key", "walnut-grove-at-night"], comm="walnut-grove-at")
    # By its disorder alone, as nothing else tells of it.
    harmless = ["walnut-grove", "ThreadPoolExecu", "tokio-runtime-w", "NCCL Progress12"]
    for name in ("walnut-grove-at", "q7Rk2Vx9Lm4Tz8W", *harmless):
        process.threads.add(name=name)
    (clean,) = redact.redact([snapshot], b"key").snapshots
    token = clean.processes[0].comm
    assert token == clean.processes[0].argv[2]
    names = [thread.name for thread in clean.processes[0].threads]
    assert names[0] == token
    assert re.fullmatch(r"SECRET-\w{10}", names[1])
    assert names[2:] == harmless


def test_fields_that_this_version_does_not_know_do_not_travel() -> None:
    # Field 500, text of 9 bytes.
    unknown = bytes([0xA2, 0x1F, 9]) + b"hf_SECRET"
    snapshot = snapshot_pb2.Snapshot.FromString(snapshot_pb2.Snapshot().SerializeToString() + unknown)
    assert b"hf_SECRET" in snapshot.SerializeToString()
    assert redact.redact([snapshot], b"key").snapshots[0].SerializeToString() == b""


def test_environment_that_tells_of_ranks_stays() -> None:
    snapshot = snapshot_pb2.Snapshot()
    argv = ["env", "NCCL_SOCKET_IFNAME=eth0", "CUDA_VISIBLE_DEVICES=0,1", "RANK=3", "WORLD_SIZE=8"]
    snapshot.processes.add(argv=argv)
    assert redact.redact([snapshot], b"key").snapshots[0].processes[0].argv == argv


def test_redacting_twice_changes_nothing() -> None:
    once = redact.redact([_planted(written("password", "plain"), "log")], b"key").snapshots
    twice = redact.redact(once, b"other key").snapshots
    assert [each.SerializeToString(deterministic=True) for each in twice] == [
        each.SerializeToString(deterministic=True) for each in once
    ]


def test_a_snapshot_without_secrets_stays_as_it_is() -> None:
    redacted = redact.redact([story()], b"key")
    assert redacted.tokens == {}
    assert redacted.snapshots == (story(),)


def _ids() -> list[str]:
    some = random.Random(11)
    ids = []
    for _ in range(25):
        number = uuid.UUID(int=some.getrandbits(128), version=4)
        base62 = "".join(some.choice(string.ascii_letters + string.digits) for _ in range(24))
        ids += [
            str(number), number.hex, f"chatcmpl-{base62}", f"GPU-{number}", f"sha256:{some.getrandbits(256):064x}",
            f"{some.getrandbits(160):040x}", f"0x{some.getrandbits(48):012x}", f"request_id={base62}",
            "".join(some.choice("0123456789ABCDEFGHJKMNPQRSTVWXYZ") for _ in range(26)),
            f"10.{some.randrange(256)}.{some.randrange(256)}.7:30000",
        ]  # fmt: skip
    return ids


BENIGN = """
/usr/lib/python3.11/site-packages/sglang/srt/managers/scheduler.py
/usr/lib/x86_64-linux-gnu/libc.so.6
/v1/chat/completions
/generate?stream=true
http://127.0.0.1:30000/v1/completions
http://[::1]:8000/metrics
sglang:num_running_reqs
vllm:gpu_cache_usage_perc
sglang::scheduler_TP0_DP1
python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct --tp 8
max_tokens=4096
#token: 812, token usage: 0.31, #queue-req: 0
gen throughput (token/s): 1432.11
eos_token='<|im_end|>'
next_token=17
tokenizer_path=Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4
authentication is disabled
basic authentication
bearer tokens are not checked
api_key=None
password: not set
_ZN5tokio7runtime4task3raw4poll17h3a1b2c3d4e5f6a7bE
_RNvMs0_NtCs1XyZ2Ab3Cd4_5tokio7runtime4park9ParkInner4park
core::ptr::drop_in_place<hyper::proto::h1::Connection>
_PyEval_EvalFrameDefault
void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64, 64, 4>>
futex_do_wait+0x10/0x20
router.service
/system.slice/docker-4f3c2b1a0d9e8f7a6b5c4d3e2f1a0b9c8d7e6f5a4b3c2d1e0f9a8b7c6d5e4f3a.scope
2026-01-02T03:04:05.678Z
NVIDIA H100 80GB HBM3
535.129.03
NCCL_DEBUG=INFO
ncclDevKernel_AllReduce_Sum_bf16_RING_LL
Task-1742 awaits Future
worker http://10.0.0.3:30001 failed: Connection refused (os error 111)
latency=264599869
keepalive_timeout=75
sk-learn
hf_transfer
DisaggregationPrefillBootstrapQueue
TokenizerManagerRequestStateHandler2
Process 4711 holds 30 requests, oldest 61.2 s
cuda_graph_max_bs_for_disaggregated_decode_workers
key=value
nvidia_peermem
MainThread
ThreadPoolExecutor-0_0
asyncio_0
/dev/nvidia-caps/nvidia-cap1
""".strip().split("\n")


def _benign() -> list[str]:
    values = BENIGN + _ids()
    numbered = [f"{text} {number}" for number, text in enumerate(BENIGN * 5)]
    return (values + numbered)[:500]


def _changed(text: str) -> bool:
    snapshot = snapshot_pb2.Snapshot()
    snapshot.debug_traces.add(text=text)
    return redact.redact([snapshot], b"key").snapshots[0].debug_traces[0].text != text


def test_at_most_two_percent_of_benign_values_are_redacted_and_no_id() -> None:
    benign = _benign()
    assert len(benign) == 500
    assert [text for text in _ids() if _changed(text)] == []
    wrong = [text for text in benign if _changed(text)]
    assert len(wrong) <= 10, wrong


MODELS = [
    "Llama-3.3-70B-Instruct",
    "Qwen2.5-VL-72B-Instruct-AWQ",
    "DeepSeek-V3-0324",
    "DeepSeek-R1-Distill-Qwen-32B",
    "Mixtral-8x22B-Instruct-v0.1",
    "gemma-3-27b-it-qat-q4_0-gguf",
    "Qwen3-235B-A22B-Thinking-2507-FP8",
    "Kimi-K2-Instruct-0905-W4A16",
]


def test_paths_of_this_machine_models_and_recorded_texts_stay() -> None:
    some = random.Random(3)
    files_here = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    recorded: set[str] = set()
    for scene in sorted(Path("tests/golden/scenes").glob("*.binpb")):
        snapshot = snapshot_pb2.Snapshot.FromString(scene.read_bytes())
        recorded.update(text for texts, _, _, _ in texts_of(snapshot) for text in texts)
    values = [str(path) for path in some.sample(files_here, 250)]
    values += [f"{owner}/{model}" for owner in ("meta-llama", "Qwen", "deepseek-ai") for model in MODELS]
    values += some.sample(sorted(recorded), 226)
    assert len(values) == 500
    assert len([text for text in values if _changed(text)]) <= 10
