"""Options that several commands take."""

from __future__ import annotations

import functools
import math
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import click

from freezeframe.client import config as configuration
from freezeframe.client.settings import Color, Output, Settings

F = TypeVar("F", bound=Callable[..., Any])

_LONGEST_S = 3600.0
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([smhd]?)", re.ASCII)
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The common options as given in one place; None = not given."""

    output: str | None
    color: str | None
    quiet: bool
    config: str | None = None


def common_options(function: F) -> F:
    """Add --output, --color and --quiet, as the group and every command take them."""
    for option in (
        click.option("-q", "--quiet", is_flag=True, help="Say nothing on stderr but errors."),
        click.option("--color", type=click.Choice(configuration.COLORS), help="Colour; auto = on a terminal."),
        click.option("--output", type=click.Choice(configuration.OUTPUTS), help="Form of the result.  [default: text]"),
    ):
        function = option(function)
    return function


def with_settings(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give the command one Settings in place of the common options; its own ones win over the group's."""

    @functools.wraps(function)
    def wrapped(*arguments: Any, output: str | None, color: str | None, quiet: bool, **rest: Any) -> Any:
        ctx = click.get_current_context()
        own = Options(output=output, color=color, quiet=quiet)
        return ctx.invoke(function, settings(own, ctx.find_object(Options)), *arguments, **rest)

    return cast("Callable[..., Any]", common_options(wrapped))


def settings(own: Options, group: Options | None) -> Settings:
    """Merge the command's options over the group's over the configuration. Raises ConfigError."""
    base = group or Options(output=None, color=None, quiet=False)
    config = configuration.load(os.environ, base.config)
    return Settings(
        output=cast("Output", own.output or base.output or config.output or "text"),
        color=cast("Color", own.color or base.color or config.color or "auto"),
        quiet=own.quiet or base.quiet,
        config=config,
        environ=os.environ,
    )


def host_argument(function: F) -> F:
    """Add [HOST]."""
    return click.argument("host", required=False, shell_complete=_complete_host)(function)


def trust_option(function: F) -> F:
    """Add --trust-socket-owner."""
    return click.option(
        "--trust-socket-owner", "trust_owner", is_flag=True, help="Accept a socket that neither root nor you own."
    )(function)


def budget_option(function: F) -> F:
    """Add --budget TOKENS."""
    return click.option(
        "--budget", type=click.IntRange(50), metavar="TOKENS", help="Cut text or Markdown to about so many tokens."
    )(function)


def of_host_option(function: F) -> F:
    """Add --host NAME."""
    return click.option("--host", metavar="NAME", help="Of a file of several hosts, this one alone.")(function)


def check_budget(settings: Settings, budget: int | None) -> None:
    """Refuse a budget for what is never cut. Raises UsageError."""
    if budget is not None and settings.output not in {"text", "markdown"}:
        raise click.UsageError("--budget cuts text and Markdown: use it with --output text or markdown")


class Seconds(click.FloatRange):
    """A number of seconds, up to an hour."""

    name = "number of seconds"

    def __init__(self, least: float = 0.0) -> None:
        """Accept from `least` on."""
        super().__init__(min=least, max=_LONGEST_S)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Refuse what is no number too."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return number


class Duration(click.types.FloatParamType):
    """A time: seconds, or "10m", "1h", "2d"."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Give seconds."""
        if isinstance(value, float):
            return value
        found = _DURATION.fullmatch(str(value))
        if found is None:
            self.fail(f"{value!r} is no time: give seconds, or 10m, 1h, 2d.", param, ctx)
        return float(found[1]) * _UNITS[found[2]]


class Text(click.types.StringParamType):
    """Text that goes to an agent. What is no UTF-8 on the command line comes with surrogates, which cannot be sent."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse what cannot be sent."""
        text = str(super().convert(value, param, ctx))
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail(f"{text!r} is not UTF-8.", param, ctx)
        return text


class OutFile(click.Path):
    """A file to write, or a directory to write one in; a device, a pipe or a link that is there is never replaced."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse what is no place for a file, before anything is captured."""
        path = os.fspath(super().convert(value, param, ctx))
        if path in ("", "-"):
            self.fail(f"{path!r} is no file name: the result on stdout is text.", param, ctx)
        if os.path.lexists(path) and not os.path.isdir(path) and not stat.S_ISREG(os.lstat(path).st_mode):
            self.fail(f"{path!r} is there and is no regular file.", param, ctx)
        return path


def keep_input(file: str, out: str | None) -> None:
    """Refuse to write the result over the snapshot that it is of. Raises UsageError."""
    if out is not None and same_place(file, out):
        raise click.UsageError(f"{out} is the snapshot itself: name another file with -o")


def same_place(one: str, other: str) -> bool:
    """Say whether two paths lead to one file, there or not."""
    try:
        return os.path.realpath(one) == os.path.realpath(other)
    except FileNotFoundError:
        # The current directory is gone: nothing is read or written by a path that begins there.
        return False


def _complete_host(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    try:
        hosts = configuration.load(os.environ).hosts
    except Exception:  # noqa: BLE001 - a broken configuration must not break the shell's line
        return []
    return [name for name in sorted(hosts) if name.startswith(incomplete)]
