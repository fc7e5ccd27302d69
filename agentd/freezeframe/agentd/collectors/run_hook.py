"""run_hook: a command or a webhook of the configuration file, told of one snapshot. Belongs to no capture.

The front names a hook; what that runs or asks the launcher has read from the configuration file itself. The event is
one JSON object, on standard input or as the body of a POST: ids, codes and sentences, no evidence. Privilege: that of
the launcher. A command gets an environment of its own; it ends with the worker, and so does what it started, but not
what made a process group of its own. Redirects of a webhook are not followed. An address may hold a token, so it is
never told, not even in an error.
"""

from __future__ import annotations

import http.client
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import IO

from freezeframe.agentd.collectors.contract import Collector, Report, Tier, UnavailableError
from freezeframe.agentd.config import Hook
from freezeframe.agentd.host import Host
from freezeframe.agentd.host.text import escape
from freezeframe.agentd.jobs import Job

_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
_TOLD_BYTES = 300


def of(hooks: Sequence[Hook]) -> Collector:
    """The collector with these hooks."""
    known = {hook.name: hook for hook in hooks}

    def collect(job: Job, _host: Host, report: Report) -> None:
        """Run the hook that the job names."""
        hook = known.get(job.hook)
        if hook is None:
            raise UnavailableError(
                f"hook {job.hook}: the configuration file has none of that name", "restart the agent"
            )
        report.doing(f"running hook {hook.name}")
        if hook.command:
            _command(hook, job.event.encode())
        else:
            _post(hook, job.event.encode())

    return Collector(name="run_hook", tier=Tier.OUTSIDE, collect=collect, wants=None)


def _command(hook: Hook, event: bytes) -> None:
    try:
        done = subprocess.run(
            hook.command,
            input=event,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=_ENVIRONMENT,
            cwd="/",
            timeout=hook.timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(
            f"hook {hook.name}: not done after {hook.timeout_s:g} s", "raise its timeout_s"
        ) from None
    except OSError as error:
        raise UnavailableError(f"hook {hook.name}: starting {hook.command[0]}: {error.strerror}") from error
    if done.returncode:
        said = escape(done.stderr.strip()[-_TOLD_BYTES:])
        raise UnavailableError(f"hook {hook.name}: it ended with {done.returncode}{': ' if said else ''}{said}")


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the event goes where the configuration says."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> None:
        del req, fp, code, msg, headers, newurl


def _post(hook: Hook, event: bytes) -> None:
    request = urllib.request.Request(  # noqa: S310 - http or https: the configuration was checked
        hook.url, data=event, headers={"Content-Type": "application/json", "User-Agent": "freezeframe-agentd"}
    )
    try:
        with urllib.request.build_opener(_Stay()).open(request, timeout=hook.timeout_s):
            pass
    except urllib.error.HTTPError as error:
        error.close()
        raise UnavailableError(f"hook {hook.name}: its address answers {error.code}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        why = getattr(reason, "strerror", None) or type(reason).__name__
        raise UnavailableError(f"hook {hook.name}: asking its address: {why}") from None


RUN_HOOK = of(())
