from __future__ import annotations

from pathlib import Path

import pytest

from freezeframe.agentd.config import (
    CaptureLimits,
    Config,
    Groups,
    RoleOverride,
    StoreLimits,
    in_force,
    load,
    parse,
    show,
)
from freezeframe.agentd.errors import ConfigError

FULL = """
runtime_dir = "/run/other"
state_dir = "/srv/state"
log_level = "debug"
clients = ["harness", "10.0.0.7"]

[groups]
view = "adm"
capture = "ops"
admin = "wheel"

[capture]
window_s = 2
max_window_s = 10
deadline_s = 3.5
allow_seize = true

[store]
max_snapshots = 7

[[roles]]
role = "router"
title = "my-\\"router\\""
port = 30000

[[roles]]
role = "engine-http"
exe = "/opt/engine"
"""


def test_an_empty_file_gives_the_defaults() -> None:
    assert parse("", "x") == Config()


def test_every_key_is_taken() -> None:
    assert parse(FULL, "x") == Config(
        runtime_dir="/run/other",
        state_dir="/srv/state",
        log_level="debug",
        clients=("harness", "10.0.0.7"),
        groups=Groups(view="adm", capture="ops", admin="wheel"),
        capture=CaptureLimits(window_s=2.0, max_window_s=10.0, deadline_s=3.5, allow_seize=True),
        store=StoreLimits(max_snapshots=7),
        roles=(
            RoleOverride(role="router", title='my-"router"', port=30000),
            RoleOverride(role="engine-http", exe="/opt/engine"),
        ),
    )


@pytest.mark.parametrize("text", ["", FULL])
def test_what_is_shown_can_be_read_again(text: str) -> None:
    config = parse(text, "x")
    assert parse(show(config), "shown") == config


@pytest.mark.parametrize(
    ("text", "detail", "hint"),
    [
        ('runtime_dri = "/x"', "x.toml: unknown key runtime_dri", "did you mean runtime_dir?"),
        ("[capture]\nmax_windows = 3", "x.toml: unknown key capture.max_windows", "did you mean capture.max_window_s?"),
        (
            "[groups]\nzzz = 3",
            "x.toml: unknown key groups.zzz",
            "known keys: groups.view, groups.capture, groups.admin",
        ),
        ("state_dir = 3", "x.toml: state_dir must be a text, not 3", ""),
        ("[capture]\nqueue = true", "x.toml: capture.queue must be a whole number, not True", ""),
        ("[capture]\nwindow_s = 31", "x.toml: capture.window_s must be at most max_window_s", ""),
        ("[capture]\nwindow_s = nan", "x.toml: capture.window_s must be a finite number, 0 or more", ""),
        ("[capture]\nper_minute = 0", "x.toml: capture.per_minute must be more than 0", ""),
        ("capture = 3", "x.toml: capture must be a table", ""),
        ('clients = "a"', "x.toml: clients must be a list", ""),
        ("clients = [1]", "x.toml: clients[0] must be a text, not 1", ""),
        ('log_level = "loud"', "x.toml: log_level must be one of debug, info, warning, error", ""),
        ('state_dir = "here"', "x.toml: state_dir must be an absolute path", ""),
        ('[copy]\nto = "bucket"', "x.toml: copy.to must be s3://BUCKET/PREFIX or file:///DIRECTORY", ""),
        ('[copy]\nto = "file://relative/x"', "x.toml: copy.to must be s3://BUCKET/PREFIX or file:///DIRECTORY", ""),
        ('[copy]\nto = "s3://[::1"', "x.toml: copy.to must be s3://BUCKET/PREFIX or file:///DIRECTORY", ""),
        ('[copy]\nto = "s3://a b/c"', "x.toml: copy.to must be s3://BUCKET/PREFIX or file:///DIRECTORY", ""),
        *(
            (f'[copy]\nendpoint = "{each}"', "x.toml: copy.endpoint must be https://HOST:PORT or http://HOST:PORT", "")
            for each in ("minio:9000", "http://[x", "http://h:99999", "http://h:x", "http://", "http://a b")
        ),
        *(
            (f'[[hooks]]\nname = "a"\nurl = "{each}"', "x.toml: hooks[0].url must be an http or https address", "")
            for each in ("ftp://h", "http://", "http://[", "http://h:99999/", "http://a b/", "http://h/\\n")
        ),
        ("[capture]\nqueue = " + "9" * 400, "x.toml: capture.queue is too large a number", ""),
        ("[capture]\nwindow_s = " + "9" * 400, "x.toml: capture.window_s is too large a number", ""),
        ("[store]\nmax_snapshots = " + "9" * 5000, "reading x.toml: ", ""),
        ("a = " + "[" * 100_000, "reading x.toml: ", ""),
        ('runtime_dir = "/run/\\u0000"', "x.toml: runtime_dir has a NUL in it", ""),
        ('[[hooks]]\nname = "a"\ncommand = ["/a\\u0000"]', "x.toml: hooks[0].command[0] has a NUL in it", ""),
        (
            '[copy]\nto = "s3://key:secret@bucket"',
            "x.toml: copy must be without credentials: they belong into the environment",
            "",
        ),
        *(
            (f'[metrics]\naddress = "{each}"', "x.toml: metrics.address must be an IP address", "")
            for each in ("", "localhost", "0.0.0.0:9817", "[::]")
        ),
        ("[store]\nmax_snapshots = 0", "x.toml: store.max_snapshots must be 1 or more", ""),
        ('[audit]\nfile = "audit.log"', "x.toml: audit.file must be an absolute path", ""),
        ("[audit]\nmax_bytes = 100", "x.toml: audit.max_bytes must be 65536 or more", ""),
        ("[audit]\nkeep = 0", "x.toml: audit.keep must be a whole number from 1 to 1000", ""),
        ("[audit]\nkeeps = 1", "x.toml: unknown key audit.keeps", "did you mean audit.keep?"),
        ("[[roles]]\nport = 1", "x.toml: roles[0].role is missing", ""),
        ('[[roles]]\nrole = "router"', "x.toml: roles[0] must be given a title, exe, unit or port to match", ""),
        ('[[roles]]\nrole = "king"\nport = 1', "x.toml: roles[0].role must be one of other, client, ", ""),
    ],
)
def test_what_is_wrong_is_named(text: str, detail: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "x.toml")
    assert caught.value.detail.startswith(detail)
    assert caught.value.hint == hint


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("= 3")
    with pytest.raises(ConfigError, match=r"c\.toml: Invalid"):
        load(str(tmp_path / "c.toml"))


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^reading /nonexistent/x\.toml: No such file or directory$"):
        load("/nonexistent/x.toml")


def test_options_come_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.toml").write_text('runtime_dir = "/run/a"\nstate_dir = "/srv/a"\n')
    monkeypatch.chdir(tmp_path)
    config = in_force(str(tmp_path / "c.toml"), runtime_dir="here")
    assert (config.runtime_dir, config.state_dir) == (str(tmp_path / "here"), "/srv/a")


def test_the_default_file_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("freezeframe.agentd.config.DEFAULT_PATH", "/nonexistent/agentd.toml")
    assert in_force(None) == Config()
    with pytest.raises(ConfigError):
        in_force("/nonexistent/agentd.toml")
