from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freezeframe.agentd.host.argv import HIDDEN, allowed, allowed_title

SECRET = "sk-live-0123456789abcdef"


@pytest.mark.parametrize(
    ("given_line", "kept"),
    [
        (
            "/venv/bin/python -u -m sglang.launch_server --model-path /models/x --port 30000 --api-key " + SECRET,
            "/venv/bin/python -u -m sglang.launch_server --model-path x --port 30000 --api-key …",
        ),
        (
            "/usr/bin/python3.11 /venv/bin/vllm serve org/model --tensor-parallel-size 8 --tensor_parallel_size=4",
            "/usr/bin/python3.11 /venv/bin/vllm serve … --tensor-parallel-size 8 --tensor_parallel_size=4",
        ),
        (
            "sglang serve --disaggregation-mode=prefill --api-key=" + SECRET,
            "sglang serve --disaggregation-mode=prefill --api-key=…",
        ),
        ("smg launch --worker-urls http://u:p@h:1/x?k=v http://b:2", "smg launch --worker-urls http://h:1 http://b:2"),
        (
            "python -m sglang_router.launch_router --prefill http://a:p@ss@10.0.0.1:1 8998 --decode http://[::1]:2/v1",
            "python -m sglang_router.launch_router --prefill http://10.0.0.1:1 8998 --decode http://[::1]:2",
        ),
        ("python -X dev -c print('" + SECRET + "') " + SECRET, "python -X … -c … …"),
        ("node --require ./hook server.js --token=abc", "node --require … server.js --token=…"),
        ("bash -lc secret", "bash … …"),
        ("mysql -psecret -u root", "mysql … -u …"),
        ("curl -H Authorization:" + SECRET + " http://x/?key=" + SECRET, "curl -H … …"),
        ("python app.py --port " + SECRET + "=x --host " + SECRET, "python app.py --port … --host …"),
        ("prog -" + SECRET + "'% DB_PASSWORD=x", "prog … …"),
        ("prog --offset -5 --port -1", "prog --offset … --port -1"),
    ],
)
def test_allowed(given_line: str, kept: str) -> None:
    assert " ".join(allowed(given_line.encode().split(b" "))) == kept


def test_an_empty_command_line() -> None:
    assert allowed([]) == ()
    assert allowed([b""]) == (HIDDEN,)


def test_a_long_command_line_is_cut_and_says_so() -> None:
    kept = allowed([b"prog", *[b"--port"] * 1000])
    assert len(kept) == 201
    assert kept[-1] == HIDDEN
    assert allowed([b"prog", b"--model-path", b"a" * 100_000]) == ("prog", "--model-path", HIDDEN)


@pytest.mark.parametrize(
    ("title", "kept"),
    [
        (b"sglang::scheduler_TP0", "sglang::scheduler_TP0"),
        (b"nginx: worker process", "nginx: worker process"),
        (b"celery worker --password=hunter2 -A app", "celery worker --password=… -A …"),
        (b"job TOKEN=abc http://u:p@h:1/x?y " + SECRET.encode(), "job TOKEN=… http://h:1 …"),
        (b"a\x1b[31mb", "a\\x1b[31mb"),
    ],
)
def test_allowed_title(title: bytes, kept: str) -> None:
    assert allowed_title(title) == kept


@given(st.lists(st.binary(max_size=60), max_size=12))
def test_nothing_hidden_and_nothing_long_survives(argv: list[bytes]) -> None:
    for word in allowed(argv):
        assert word.isprintable()
        assert len(word) <= 1100
    assert allowed_title(b" ".join(argv)).isprintable()


@given(
    st.lists(st.sampled_from(["--api-key", "--port", "-p", "-m", "serve", "--url", "x", "-"]), max_size=6), st.data()
)
def test_a_secret_never_survives_as_a_value(words: list[str], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(words)))
    line = ["python", "app.py", *words[:at], SECRET, *words[at:]]
    assert not any(SECRET in word for word in allowed([word.encode() for word in line]))
