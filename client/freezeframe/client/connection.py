"""Calls an agent on a channel, or on its unix socket; a status, or a broken answer, becomes one error with its hint.

Imports grpc: commands import this module when they need it.
"""

from __future__ import annotations

import errno
import grp
import hashlib
import io
import os
import pwd
import socket
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any, TypeVar, cast

# Its log lines would stand among the results; what matters comes as a status.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc

from freezeframe.client import errors
from freezeframe.client.hosts import Target, not_there
from freezeframe.client.statuses import translate
from freezeframe.v1 import service_pb2, service_pb2_grpc

# Beyond a capture's own deadline: the way of its bytes, and an agent on a starved host.
MARGIN_S = 5.0
# For calls that look at nothing.
QUICK_S = 10.0
# For the bytes of a large snapshot.
FETCH_S = 60.0
# No snapshot comes near it; an agent that sends more is none.
MAX_BYTES = 1024 * 1024 * 1024

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.enable_retries", 0),
    # What comes unread: an agent's whole answer otherwise, times hundreds of agents. For a message that is awaited the
    # window grows to its size: over 100 ms of way, a snapshot is as fast with 16 KB as with 256.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 64 * 1024),
    ("grpc.max_receive_message_length", -1),
    # Two clients of one process would share a connection, and its death.
    ("grpc.use_local_subchannel_pool", 1),
)

# Client preface of HTTP/2 with an empty SETTINGS frame: a living server answers at once with a SETTINGS frame.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
FRAME_HEAD_BYTES = 9
_SETTINGS = 4
ANSWER_S = 5.0
_SERVICE_ACCOUNT = "freezeframe"
# Accounts below are made by root for services: SYS_UID_MAX of distributions.
_FIRST_USER = 1000

T = TypeVar("T")
Progressed = Callable[[service_pb2.Progress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A snapshot as it came, its digest checked."""

    data: bytes
    done: service_pb2.CaptureDone


class Pending:
    """An answer that is on its way: the agent works already."""

    def __init__(self, call: Any, doing: str) -> None:
        """Take the events of `call`; `doing` is what to say of it."""
        self._call = call
        self._doing = doing

    def receive(self, on_progress: Progressed = lambda _: None) -> Received:
        """Wait for the end. Raises ClientError."""
        data = io.BytesIO()
        done = self.receive_into(data, on_progress)
        return Received(data=data.getvalue(), done=done)

    def receive_into(self, target: IO[bytes], on_progress: Progressed = lambda _: None) -> service_pb2.CaptureDone:
        """Write the bytes as they come, and wait for the end. Raises ClientError, and OSError of `target`."""
        digest = hashlib.sha256()
        size = 0
        done: service_pb2.CaptureDone | None = None
        began = False
        try:
            for event in self._call:
                began = True
                kind = event.WhichOneof("event")
                if kind == "progress":
                    on_progress(event.progress)
                elif kind == "chunk":
                    size += len(event.chunk.data)
                    if size > MAX_BYTES:
                        raise errors.NotAnAgentError(f"{self._doing}: more than {MAX_BYTES:,} bytes came")
                    digest.update(event.chunk.data)
                    target.write(event.chunk.data)
                elif kind == "done":
                    done = event.done
        except grpc.RpcError as error:
            raise translate(cast("grpc.Call", error), self._doing, began=began) from error
        finally:
            self._call.cancel()
        if done is None:
            raise errors.AgentDiedError(
                f"{self._doing}: the agent's answer stops after {size:,} bytes",
                "look at it: systemctl status freezeframe-agentd",
            )
        if size != done.bytes or digest.digest() != done.digest:
            raise errors.DigestError(
                f"{self._doing}: {size:,} bytes came, and they are not the {done.bytes:,.0f} bytes that the agent sent",
                "try again; if it stays so, something between the agent and this client changes bytes",
            )
        return done


class Agent:
    """Calls on one open channel."""

    def __init__(self, name: str, channel: grpc.Channel) -> None:
        """Use `channel`; `name` is what to call the agent in a sentence."""
        self._name = name
        # Generated for grpc.Channel; its stub type is that of both kinds of channel.
        self._stub = service_pb2_grpc.CaptureServiceStub(channel)

    def capture(self, request: service_pb2.CaptureRequest, deadline_s: float) -> Pending:
        """Begin a capture."""
        call = self._stub.Capture(request, timeout=deadline_s + MARGIN_S)
        return Pending(call, f"capturing {self._name}")

    def get(self, snapshot_id: str) -> Pending:
        """Begin to fetch a kept snapshot; "latest" is the newest."""
        request = service_pb2.GetSnapshotRequest(snapshot_id=snapshot_id)
        call = self._stub.GetSnapshot(request, timeout=FETCH_S)
        return Pending(call, f"fetching {snapshot_id} from {self._name}")

    def kept(self, limit: int) -> service_pb2.ListSnapshotsResponse:
        """List kept snapshots, newest first. Raises ClientError."""
        request = service_pb2.ListSnapshotsRequest(limit=limit)
        return self._unary(
            lambda: self._stub.ListSnapshots(request, timeout=QUICK_S), f"listing snapshots of {self._name}"
        )

    def delete(self, snapshot_id: str) -> None:
        """Delete a kept snapshot. Raises ClientError."""
        request = service_pb2.DeleteSnapshotRequest(snapshot_id=snapshot_id)
        self._unary(
            lambda: self._stub.DeleteSnapshot(request, timeout=QUICK_S),
            f"deleting {snapshot_id} on {self._name}",
        )

    def pin(self, snapshot_id: str, *, pinned: bool) -> None:
        """Pin a kept snapshot, or unpin it. Raises ClientError."""
        request = service_pb2.PinSnapshotRequest(snapshot_id=snapshot_id, pinned=pinned)
        self._unary(
            lambda: self._stub.PinSnapshot(request, timeout=QUICK_S),
            f"{'pinning' if pinned else 'unpinning'} {snapshot_id} on {self._name}",
        )

    def schedules(self) -> service_pb2.ListSchedulesResponse:
        """List what the agent captures by itself. Raises ClientError."""
        request = service_pb2.ListSchedulesRequest()
        return self._unary(
            lambda: self._stub.ListSchedules(request, timeout=QUICK_S), f"listing schedules of {self._name}"
        )

    def put_schedule(self, schedule: service_pb2.Schedule) -> None:
        """Add or replace a schedule. Raises ClientError."""
        request = service_pb2.PutScheduleRequest(schedule=schedule)
        self._unary(
            lambda: self._stub.PutSchedule(request, timeout=QUICK_S),
            f"adding the schedule {schedule.name} on {self._name}",
        )

    def delete_schedule(self, name: str) -> None:
        """Delete a schedule. Raises ClientError."""
        request = service_pb2.DeleteScheduleRequest(name=name)
        self._unary(
            lambda: self._stub.DeleteSchedule(request, timeout=QUICK_S),
            f"deleting the schedule {name} on {self._name}",
        )

    def capabilities(self) -> service_pb2.GetCapabilitiesResponse:
        """Ask what the agent can see. Raises ClientError."""
        request = service_pb2.GetCapabilitiesRequest()
        return self._unary(
            lambda: self._stub.GetCapabilities(request, timeout=QUICK_S), f"asking {self._name} what it can see"
        )

    def watch(self, interval_s: float) -> Generator[service_pb2.WatchResponse, None, None]:
        """Give the hops each time that the agent tells of them, for as long as they are taken. Raises ClientError."""
        call = self._stub.Watch(service_pb2.WatchRequest(interval_ms=interval_s * 1000.0))
        try:
            yield from call
        except grpc.RpcError as error:
            raise translate(cast("grpc.Call", error), f"watching {self._name}", began=True) from error
        finally:
            call.cancel()

    def _unary(self, call: Callable[[], T], doing: str) -> T:
        try:
            return call()
        except grpc.RpcError as error:
            raise translate(cast("grpc.Call", error), doing) from error


@contextmanager
def connect(target: Target, *, trust_owner: bool = False) -> Iterator[Agent]:
    """Open a channel to `target`, once its socket was looked at and answers. Raises AgentError."""
    _check_owner(target, trust_owner=trust_owner)
    check_answers(target)
    with calling(target.name, grpc.insecure_channel(f"unix:{target.path}", options=CHANNEL_OPTIONS)) as agent:
        yield agent


@contextmanager
def calling(name: str, channel: grpc.Channel) -> Iterator[Agent]:
    """Use `channel` for as long as the block runs."""
    interrupted = False
    try:
        yield Agent(name, channel)
    except (KeyboardInterrupt, SystemExit):
        # Between the start of a call and that of gRPC's thread that serves it, a signal leaves the call open for ever,
        # and closing waits for it: this process ends now, and the call with it.
        interrupted = True
        raise
    finally:
        if not interrupted:
            channel.close()


def _check_owner(target: Target, *, trust_owner: bool) -> None:
    try:
        target.path.encode()
    except UnicodeEncodeError as error:
        raise errors.HostError(
            f"connecting to {target.name}: the path of its socket is not UTF-8",
            "start that agent with another --runtime-dir",
        ) from error
    try:
        found = os.lstat(target.path)
    except FileNotFoundError as error:
        raise not_there(target) from error
    except PermissionError as error:
        raise _no_permission(target) from error
    except OSError as error:
        raise errors.AgentNotThereError(
            f"connecting to {target.name}: {target.path}: {error.strerror or error}"
        ) from error
    if not stat.S_ISSOCK(found.st_mode):
        raise errors.NotAnAgentError(f"connecting to {target.name}: {target.path} is no socket")
    if found.st_uid not in (0, os.geteuid(), _service_uid()) and not trust_owner:
        raise errors.SocketOwnerError(
            f"connecting to {target.name}: {target.path} belongs to {_user(found.st_uid)}, neither to root nor to you: "
            "it may be somebody else's program that waits for you",
            "if you know that agent: --trust-socket-owner",
        )


def check_answers(target: Target) -> None:
    """Connect once by hand: errno says more than a gRPC status, and a dead agent's listener may outlive it.

    Raises AgentError.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(ANSWER_S)
        try:
            probe.connect(target.path)
            probe.sendall(PREFACE)
            head = probe.recv(FRAME_HEAD_BYTES)
        except PermissionError as error:
            raise _no_permission(target) from error
        except (TimeoutError, BlockingIOError) as error:
            raise errors.AgentNotThereError(
                f"connecting to {target.name}: {target.path} takes connections, and nothing answers on it",
                "the agent hangs or is stopped: systemctl restart freezeframe-agentd, or use --embedded",
            ) from error
        except OSError as error:
            if error.errno in (errno.ECONNREFUSED, errno.ENOENT):
                raise not_there(target) from error
            raise errors.AgentNotThereError(
                f"connecting to {target.name}: {target.path}: {error.strerror or error}"
            ) from error
    if not begins_http2(head):
        raise errors.NotAnAgentError(
            f"connecting to {target.name}: what answers on {target.path} is no freezeframe agent",
            "name the agent's socket: unix:/run/freezeframe/capture.sock",
        )


def begins_http2(head: bytes) -> bool:
    """Whether the first bytes of an answer are the head of a SETTINGS frame: a type of 4 in the fourth byte."""
    return len(head) >= FRAME_HEAD_BYTES and head[3] == _SETTINGS


def _no_permission(target: Target) -> errors.SocketPermissionError:
    sentence = f"connecting to {target.name}: you may not open {target.path}"
    try:
        found = os.stat(target.path)
    except OSError:
        return errors.SocketPermissionError(sentence, "run it as root, or ask who runs the agent")
    group = _group(found.st_gid)
    if found.st_gid == 0:
        return errors.SocketPermissionError(
            f"{sentence}: it belongs to root alone", "run it with sudo, or name a group in the agent's configuration"
        )
    return errors.SocketPermissionError(
        f"{sentence}: it belongs to the group {group}",
        f"join it: sudo usermod -aG {group} {_user(os.geteuid())}, then log in again; or run it with sudo",
    )


def _service_uid() -> int:
    """Give the uid of the account that the agent's package made for it, which is nobody's to log in; else root's."""
    with suppress(KeyError):
        account = pwd.getpwnam(_SERVICE_ACCOUNT)
        if account.pw_uid < _FIRST_USER:
            return account.pw_uid
    return 0


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
