"""The listener for other hosts, with real certificates and a real client: who is let in, what everybody else hears."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from freezeframe.agentd.config import Config, Remote
from freezeframe.agentd.roles import Role
from freezeframe.v1 import service_pb2, service_pb2_grpc
from tests.contract.test_service import ALLOWED, METHODS, REQUESTS, Reason, info_of
from tests.support.agent import RunningAgent, running_agent
from tests.support.certificates import LONG_AGO, Authority, authority, remote
from tests.support.waiting import eventually

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
PARTIAL = 4


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return authority(tmp_path / "ca")


@contextlib.asynccontextmanager
async def listening(tmp_path: Path, settings: Remote, **options: Any) -> AsyncIterator[RunningAgent]:
    async with running_agent(tmp_path / "a", config=Config(remote=settings), **options) as agent:
        yield agent


@pytest.fixture
async def agent(tmp_path: Path, ca: Authority) -> AsyncIterator[RunningAgent]:
    async with listening(tmp_path, remote(ca.agent())) as running:
        yield running


def port_of(agent: RunningAgent) -> int:
    assert agent.listener is not None
    return agent.listener.port


async def client(host: str, files: Path | None, folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Run the client with the certificates of `files` in its place."""
    place = folder / "config" / "freezeframe"
    shutil.rmtree(place, ignore_errors=True)
    if files is not None:
        shutil.copytree(files, place)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "freezeframe.client", *(arguments or ("snap",)), host, cwd=folder,
        env={**os.environ, "XDG_CONFIG_HOME": str(folder / "config")},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    stdout, stderr = await process.communicate()
    assert process.returncode is not None
    return process.returncode, stdout.decode(), stderr.decode()


def refusals(agent: RunningAgent) -> list[tuple[str, str]]:
    return [(line["outcome"], line["detail"]) for line in agent.audit_lines() if line.get("rpc") == "connect"]


@pytest.mark.parametrize("name", ["a..b", "a" * 300, f"{'a' * 64}.test"])
async def test_a_name_that_no_host_has(ca: Authority, tmp_path: Path, name: str) -> None:
    host = f"tls://{name}:7443"
    code, stdout, stderr = await client(host, ca.client(Role.VIEW), tmp_path, "list")
    assert (code, stdout, stderr.splitlines()) == (3, "", [
        f"Error: connecting to {host}: {name[:80]} is no name of a host", "Hint: check the name of the host",
    ])  # fmt: skip


async def test_a_certificate_with_the_role_captures_and_is_named_in_the_audit(
    agent: RunningAgent, ca: Authority, tmp_path: Path
) -> None:
    code, stdout, stderr = await client(f"tls://127.0.0.1:{port_of(agent)}", ca.client(Role.CAPTURE), tmp_path)
    assert code in (0, PARTIAL), stderr
    assert stdout
    (saved,) = tmp_path.glob("*.ffz")
    (line,) = [line for line in agent.audit_lines() if line["rpc"] == "Capture"]
    assert line["who"].startswith("tls alice 127.0.0.1:")
    assert line["outcome"] == "OK"
    assert line["bytes"] > saved.stat().st_size
    assert refusals(agent) == []
    # Nothing of the way stays in the directory.
    await eventually(lambda: os.listdir(tmp_path / "a" / "run" / "remote") == ["agent.sock"])
    assert (tmp_path / "a" / "run" / "remote").stat().st_mode & 0o777 == 0o700


async def test_the_wrong_role_is_named_with_the_command_that_mends_it(
    agent: RunningAgent, ca: Authority, tmp_path: Path
) -> None:
    code, _, stderr = await client(f"tls://127.0.0.1:{port_of(agent)}", ca.client(Role.VIEW), tmp_path)
    assert code == 3
    assert "Capture needs the role capture; the certificate of alice has view\n" in stderr
    assert "Hint: have one issued: freezeframe-agentd certs issue --role capture alice\n" in stderr
    (line,) = [line for line in agent.audit_lines() if line["rpc"] == "Capture"]
    assert (line["outcome"], line["who"][:20]) == ("PERMISSION_DENIED", "tls alice 127.0.0.1:")


async def test_certificates_that_do_not_do(agent: RunningAgent, ca: Authority, tmp_path: Path) -> None:
    host = f"tls://127.0.0.1:{port_of(agent)}"
    foreign = authority(tmp_path / "other").client(Role.ADMIN, "mallory")
    shutil.copyfile(ca.folder / "ca.crt", foreign / "ca.crt")
    expired = ca.client(Role.CAPTURE, "bob", begins=LONG_AGO)
    # An agent's own certificate is not one to call with.
    servers = tmp_path / "servers"
    servers.mkdir()
    for name, copy in (("agent.crt", "client.crt"), ("agent.key", "client.key"), ("ca.crt", "ca.crt")):
        shutil.copyfile(ca.folder / "agent" / name, servers / copy)
    cases = (
        (foreign, "its issuer is not the authority that the agent knows", "unable to get local issuer certificate"),
        (expired, "it has expired", "certificate has expired"),
        (servers, "it is not for clients", "unsuitable certificate purpose"),
    )
    for files, said, audited in cases:
        code, _, stderr = await client(host, files, tmp_path)
        assert (code, stderr.splitlines()[0]) == (
            3, f"Error: connecting to {host}: the agent does not accept your certificate: {said}"
        )  # fmt: skip
        outcome, detail = refusals(agent)[-1]
        assert outcome == "UNAUTHENTICATED"
        assert detail.startswith("its certificate was refused: ")
        assert audited in detail
    code, _, stderr = await client(host, None, tmp_path)
    assert code == 3
    assert f"reading {tmp_path}/config/freezeframe/" in stderr
    assert "Hint: have one issued on the host of its authority: freezeframe-agentd certs issue --role" in stderr


async def test_an_agents_certificate_that_does_not_do(tmp_path: Path, ca: Authority) -> None:
    mine = ca.client(Role.CAPTURE)
    other = authority(tmp_path / "other")
    shutil.copytree(other.agent(), tmp_path / "foreign")
    # It accepts our certificates, and has one of another authority.
    shutil.copyfile(ca.folder / "ca.crt", tmp_path / "foreign" / "ca.crt")
    async with listening(tmp_path, remote(tmp_path / "foreign")) as agent:
        code, _, stderr = await client(f"tls://127.0.0.1:{port_of(agent)}", mine, tmp_path)
        assert code == 3
        assert "the agent's certificate: unable to get local issuer certificate\n" in stderr
        await eventually(
            lambda: refusals(agent) == [("UNAUTHENTICATED", "it does not trust who issued this agent's certificate")]
        )
    async with listening(tmp_path, remote(ca.agent(tmp_path / "old", begins=LONG_AGO))) as agent:
        code, _, stderr = await client(f"tls://127.0.0.1:{port_of(agent)}", mine, tmp_path)
        assert code == 3
        assert "the agent's certificate: certificate has expired\n" in stderr
        await eventually(lambda: refusals(agent) == [("UNAUTHENTICATED", "to it this agent's certificate has expired")])
    async with listening(tmp_path, replace(remote(ca.agent()), listen="127.0.0.2:0")) as agent:
        code, _, stderr = await client(f"tls://127.0.0.2:{port_of(agent)}", mine, tmp_path)
        assert code == 3
        assert "the agent's certificate: IP address mismatch, certificate is not valid for '127.0.0.2'" in stderr


async def test_no_certificate_plaintext_and_old_tls_are_refused_with_their_cause(
    agent: RunningAgent, ca: Authority, tmp_path: Path
) -> None:
    address = f"127.0.0.1:{port_of(agent)}"
    s_client = ("openssl", "s_client", "-connect", address, "-CAfile", str(ca.folder / "ca.crt"))
    mine = ca.client(Role.CAPTURE)
    cases = (
        ((), "it has no certificate"),
        (("-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0"), "its TLS is older than 1.2"),
        (("-tls1", "-cipher", "DEFAULT@SECLEVEL=0"), "its TLS is older than 1.2"),
    )
    for options, cause in cases:
        process = await asyncio.create_subprocess_exec(
            *s_client, *options, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        await process.wait()
        await eventually(lambda: bool(refusals(agent)))
        assert refusals(agent)[-1] == ("UNAUTHENTICATED", cause)
    for version in ("-tls1_2", "-tls1_3"):
        process = await asyncio.create_subprocess_exec(
            *s_client, version, "-cert", mine / "client.crt", "-key", mine / "client.key",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        stdout, _ = await process.communicate()
        assert b"Verify return code: 0 (ok)" in stdout
    before = len(refusals(agent))
    for begin in (PREFACE, b"GET / HTTP/1.1\r\n\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(agent))
        writer.write(begin)
        with contextlib.suppress(ConnectionError):
            assert len(await reader.read()) < 50
        writer.close()
    await eventually(lambda: len(refusals(agent)) == before + 2)
    assert refusals(agent)[-2:] == [
        ("UNAUTHENTICATED", "it does not speak TLS"),
        ("UNAUTHENTICATED", "it does not speak TLS, but HTTP"),
    ]


async def test_what_is_no_agent_is_told_from_a_certificate(agent: RunningAgent, ca: Authority, tmp_path: Path) -> None:
    mine = ca.client(Role.CAPTURE)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code, _, stderr = await client(f"tls://127.0.0.1:{port}", mine, tmp_path)
    assert (code, stderr.splitlines()[0]) == (
        3, f"Error: connecting to tls://127.0.0.1:{port}: nothing listens on port {port} there"
    )  # fmt: skip
    code, _, stderr = await client("tls://no-such-host.invalid:7443", mine, tmp_path)
    assert code == 3
    assert "Error: connecting to tls://no-such-host.invalid:7443: no-such-host.invalid: " in stderr
    with socket.create_server(("127.0.0.1", 0)) as plain:
        port = plain.getsockname()[1]
        asking = asyncio.ensure_future(client(f"tls://127.0.0.1:{port}", mine, tmp_path))
        plain.setblocking(False)
        connection, _ = await asyncio.get_running_loop().sock_accept(plain)
        connection.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        code, _, stderr = await asking
        connection.close()
    assert code == 3
    assert "what answers there does not speak TLS\n" in stderr
    # A server with the right certificate that is no agent.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ca.folder / "agent" / "agent.crt", ca.folder / "agent" / "agent.key")

    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        await writer.drain()

    other = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=context)
    port = other.sockets[0].getsockname()[1]
    code, _, stderr = await client(f"tls://127.0.0.1:{port}", mine, tmp_path)
    other.close()
    assert code == 3
    assert "what answers there is no freezeframe agent\n" in stderr


def channel_for(agent: RunningAgent, files: Path) -> grpc.aio.Channel:
    read = {name: (files / name).read_bytes() for name in ("ca.crt", "client.key", "client.crt")}
    credentials = grpc.ssl_channel_credentials(read["ca.crt"], read["client.key"], read["client.crt"])
    channel = grpc.aio.secure_channel(
        f"127.0.0.1:{port_of(agent)}", credentials, options=[("grpc.use_local_subchannel_pool", 1)]
    )
    agent.channels.append(channel)
    return channel


async def outcome_of(stub: Any, rpc: str) -> str:
    call = getattr(stub, rpc)(REQUESTS[rpc])
    try:
        if METHODS[rpc].server_streaming:
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return str(Reason.Name(info_of(error).reason))
    return "OK"


async def test_each_certificate_may_do_what_its_role_may_and_nothing_else(agent: RunningAgent, ca: Authority) -> None:
    for role in Role:
        stub = service_pb2_grpc.CaptureServiceStub(channel_for(agent, ca.client(role)))
        for rpc in METHODS:
            outcome = await outcome_of(stub, rpc)
            assert (outcome != "ROLE_REQUIRED") == (rpc in ALLOWED[role.label]), (role, rpc, outcome)
        if role is not Role.ADMIN:
            answer = await stub.GetCapabilities(service_pb2.GetCapabilitiesRequest())
            assert tuple(answer.roles) == role.served()


async def test_a_certificate_of_the_authority_without_a_role_may_nothing(
    agent: RunningAgent, ca: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("freezeframe.agentd.certs.ROLE_URI", "freezeframe://another/")
    files = ca.client(Role.ADMIN, "eve")
    stub = service_pb2_grpc.CaptureServiceStub(channel_for(agent, files))
    assert {rpc: await outcome_of(stub, rpc) for rpc in METHODS} == dict.fromkeys(METHODS, "ROLE_REQUIRED")
    assert "the certificate of eve names no role" in agent.audit_lines()[-1]["detail"]


async def test_new_certificates_are_used_without_a_restart(tmp_path: Path, ca: Authority) -> None:
    settings = remote(ca.agent())
    mine = ca.client(Role.VIEW)
    async with listening(tmp_path, settings) as agent:
        host = f"tls://127.0.0.1:{port_of(agent)}"
        before = service_pb2_grpc.CaptureServiceStub(channel_for(agent, mine))
        await before.ListSnapshots(service_pb2.ListSnapshotsRequest())
        assert agent.listener is not None
        assert agent.listener.capability().state.name == "PRESENT"

        # Half a change is not used, and said.
        Path(settings.certificate).write_text("nonsense")
        await eventually(lambda: "new certificates are not used" in agent.log.getvalue())
        assert agent.listener.capability().state.name == "LIMITED"
        assert (await client(host, mine, tmp_path, "list"))[0] == 0

        # Another authority for both sides.
        new = authority(tmp_path / "new")
        shutil.copytree(new.agent(), ca.folder / "agent", dirs_exist_ok=True)
        await eventually(lambda: "new certificates are in use" in agent.log.getvalue())
        assert agent.listener.capability().state.name == "PRESENT"
        code, _, stderr = await client(host, mine, tmp_path, "list")
        assert (code, "the agent's certificate: " in stderr) == (3, True)
        assert (await client(host, new.client(Role.VIEW), tmp_path, "list"))[0] == 0
        # What was open goes on.
        await before.ListSnapshots(service_pb2.ListSnapshotsRequest())


async def test_a_silent_handshake_ends_and_never_keeps_others_out(tmp_path: Path, ca: Authority) -> None:
    async with listening(tmp_path, remote(ca.agent(), handshake_s=0.5)) as agent:
        silent = [await asyncio.open_connection("127.0.0.1", port_of(agent)) for _ in range(3)]
        stub = service_pb2_grpc.CaptureServiceStub(channel_for(agent, ca.client(Role.VIEW)))
        await stub.ListSnapshots(service_pb2.ListSnapshotsRequest())
        for reader, writer in silent:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
        await eventually(
            lambda: refusals(agent) == [("UNAUTHENTICATED", "it did not end the TLS handshake in time")] * 3
        )


async def test_connections_have_a_bound_in_all_and_for_one_certificate(tmp_path: Path, ca: Authority) -> None:
    async with listening(tmp_path, remote(ca.agent(), max_connections=8)) as agent:
        mine = ca.client(Role.VIEW)
        for _ in range(2):
            stub = service_pb2_grpc.CaptureServiceStub(channel_for(agent, mine))
            await stub.ListSnapshots(service_pb2.ListSnapshotsRequest())
        code, _, stderr = await client(f"tls://127.0.0.1:{port_of(agent)}", mine, tmp_path, "list")
        assert code == 3
        assert "the agent closed the connection: too many are open" in stderr
        assert refusals(agent)[-1] == ("RESOURCE_EXHAUSTED", "2 connections of alice are open already")
        # Another certificate still gets in, and so does alice when one of hers has ended.
        assert (await client(f"tls://127.0.0.1:{port_of(agent)}", ca.client(Role.VIEW, "bob"), tmp_path, "list"))[
            0
        ] == 0
        await agent.channels.pop().close()
        await eventually(lambda: agent.listener is not None and agent.listener._open["alice"] == 1)
        stub = service_pb2_grpc.CaptureServiceStub(channel_for(agent, mine))
        await stub.ListSnapshots(service_pb2.ListSnapshotsRequest())


async def test_one_certificate_that_calls_too_often_is_told_so_and_others_are_served(
    tmp_path: Path, ca: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No token comes back in the time of a test.
    monkeypatch.setattr("freezeframe.agentd.guard._PER_S", 0.001)
    async with listening(tmp_path, remote(ca.agent())) as agent:
        alice = service_pb2_grpc.CaptureServiceStub(channel_for(agent, ca.client(Role.VIEW)))
        codes = []
        for _ in range(201):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await alice.DeleteSchedule(service_pb2.DeleteScheduleRequest())
            codes.append(caught.value.code())
        assert codes == [grpc.StatusCode.PERMISSION_DENIED] * 200 + [grpc.StatusCode.RESOURCE_EXHAUSTED]
        assert "came from alice" in info_of(caught.value).detail
        bob = service_pb2_grpc.CaptureServiceStub(channel_for(agent, ca.client(Role.VIEW, "bob")))
        await bob.ListSnapshots(service_pb2.ListSnapshotsRequest())


async def test_without_tls_only_when_asked_for(tmp_path: Path) -> None:
    async with listening(tmp_path, Remote(listen="127.0.0.1:0"), insecure=True) as agent:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port_of(agent)}")
        agent.channels.append(channel)
        stub = service_pb2_grpc.CaptureServiceStub(channel)
        outcomes = {rpc: await outcome_of(stub, rpc) for rpc in METHODS}
        assert {rpc for rpc, outcome in outcomes.items() if outcome != "ROLE_REQUIRED"} == set(ALLOWED["capture"])
        assert agent.audit_lines()[0]["who"].startswith("tcp 127.0.0.1:")
        assert agent.listener is not None
        assert agent.listener.capability().state.name == "LIMITED"
