"""The daemon's command line: checks the configuration, then is the supervisor of launcher, recorder and front."""

from __future__ import annotations

import dataclasses
import difflib
import os
import sys

import click

from freezeframe.agentd import audit_file, certs_command, logs, privileges, remote, sockets, supervisor, tls
from freezeframe.agentd import config as configuration
from freezeframe.agentd.config import Config, Remote
from freezeframe.agentd.errors import ConfigError, StartError
from freezeframe.agentd.roles import Role
from freezeframe.agentd.stdout import tell


@click.group(
    invoke_without_command=True, commands={"certs": certs_command.command},
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
@click.option(
    "--config", "path", metavar="FILE", help="Configuration (default: /etc/freezeframe/agentd.toml if there)."
)
@click.option("--runtime-dir", metavar="DIR", help="Directory of the sockets.")
@click.option("--state-dir", metavar="DIR", help="Directory of kept snapshots.")
@click.option("--check-config", is_flag=True, help="Print what is in force and exit.")
@click.option("--once", is_flag=True, help="Serve until standard input ends, keep nothing; for `snap --embedded`.")
@click.option("--insecure", is_flag=True, help="Listen without TLS, on a loopback address alone.")
@click.version_option(package_name="freezeframe", prog_name="freezeframe-agentd")
@click.pass_context
def command(
    ctx: click.Context,
    path: str | None,
    runtime_dir: str | None,
    state_dir: str | None,
    check_config: bool,
    once: bool,
    insecure: bool,
) -> None:
    """Capture what a locked-up serving host is doing, for whoever asks on a unix socket. Stops nothing."""
    if ctx.invoked_subcommand is not None:
        return
    try:
        config = load(path, runtime_dir, state_dir)
        check(config)
        if not once:
            check_remote(config.remote, insecure=insecure)
            if config.audit.file:
                audit_file.check(config.audit)
        if check_config:
            check_collectors(config)
            tell(configuration.show(config).rstrip())
        else:
            run_supervisor(config, path, once=once, insecure=insecure)
    except StartError as error:
        click.echo(f"freezeframe-agentd: {error.detail}", err=True)
        if error.hint:
            click.echo(f"freezeframe-agentd: {error.hint}", err=True)
        sys.exit(1)


def load(path: str | None, runtime_dir: str | None, state_dir: str | None) -> Config:
    """Configuration of a file, with what the command line says on top. Raises ConfigError."""
    if path is None and os.path.exists(configuration.DEFAULT_PATH):
        path = configuration.DEFAULT_PATH
    config = configuration.load(path) if path is not None else Config()
    return dataclasses.replace(
        config,
        runtime_dir=_absolute(runtime_dir) if runtime_dir else config.runtime_dir,
        state_dir=_absolute(state_dir) if state_dir else config.state_dir,
    )


def _absolute(path: str) -> str:
    try:
        return os.path.abspath(path)
    except FileNotFoundError as error:
        raise StartError(f"using {path}: the current directory is gone", "name an absolute path") from error


def check(config: Config) -> None:
    """Refuse here what a child could only fail at again and again. Raises SocketRefusedError."""
    for role in Role:
        path = os.path.join(config.runtime_dir, f"{role.label}.sock")
        sockets.check_length(path)
        if group := getattr(config.groups, role.label):
            sockets.group_id(group, path)


def check_remote(settings: Remote, *, insecure: bool) -> None:
    """The same for the listener: half a TLS setup, a certificate that is not for its key. Raises ConfigError."""
    if remote.address(settings, insecure=insecure) is not None and not insecure:
        tls.load(settings)


def check_collectors(config: Config) -> None:
    """Refuse a schedule of an unknown collector, which an agent leaves out and tells of. Raises ConfigError."""
    # Of the agent's children: the supervisor has no use for them.
    from freezeframe.agentd.collectors import COLLECTORS  # noqa: PLC0415
    from freezeframe.agentd.engine import INTERNAL  # noqa: PLC0415

    known = [each.name for each in COLLECTORS if each.name not in INTERNAL]
    for index, schedule in enumerate(config.schedules):
        for key in ("only", "skip"):
            unknown = [name for name in getattr(schedule, key) if name not in known]
            if unknown:
                near = difflib.get_close_matches(unknown[0], known, n=1)
                raise ConfigError(
                    f"schedules[{index}].{key}: there is no collector {unknown[0][:80]!r}",
                    f"did you mean {near[0]}?" if near else f"collectors: {', '.join(known)}",
                )


def run_supervisor(config: Config, path: str | None, *, once: bool, insecure: bool = False) -> None:
    """Run launcher and front until SIGTERM, or with `once` until standard input ends. Raises StartError."""
    logger, writer = logs.start(config.log_level)
    supervisor.prepare(config.runtime_dir, 0o711)
    lock = supervisor.lock(config.runtime_dir)
    privileges.run_when_starved()
    arguments = ["--runtime-dir", config.runtime_dir, "--state-dir", config.state_dir]
    arguments += ["--config", _absolute(path)] if path is not None else []
    arguments += ["--once"] if once else []
    arguments += ["--insecure"] if insecure else []
    recorder = [config.runtime_dir, *([_absolute(path)] if path is not None else [])]
    specs = (
        supervisor.ChildSpec(name="launcher", command=supervisor.module("launcher", config.state_dir, *recorder[1:])),
        supervisor.ChildSpec(name="recorder", command=supervisor.module("recorder.service", *recorder)),
        supervisor.ChildSpec(name="front", command=supervisor.module("composition", *arguments, "--control-fd")),
    )
    try:
        supervisor.Supervisor(specs, logger, stop_at_end_of=sys.stdin.fileno() if once else None).run()
    finally:
        os.close(lock)
        writer.drain(1.0)
