"""Mutual TLS: a channel to an agent that listens for other hosts, once a connection by hand has said what is wrong.

To gRPC every failure of a handshake is UNAVAILABLE. So one handshake is made with Python's ssl first, with the same
files, which tells a certificate from a port where nothing listens.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import grpc

from freezeframe.client.connection import (
    ANSWER_S,
    CHANNEL_OPTIONS,
    FRAME_HEAD_BYTES,
    Agent,
    begins_http2,
    calling,
)
from freezeframe.client.errors import (
    AgentError,
    AgentNotThereError,
    AgentVersionError,
    BusyError,
    CertificateError,
    NoRouteError,
    NotAnAgentError,
)
from freezeframe.client.hosts import Tls

CONNECT_S = 10.0
_UNREACHABLE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.ETIMEDOUT)
_ISSUE = "have one issued on the host of its authority: freezeframe-agentd certs issue --role ROLE YOUR-NAME"
_LISTEN = "is [remote] set up in its agentd.toml, and the port right? On that host: freezeframe doctor"

# What the agent said of this user's certificate, by what OpenSSL calls it.
_REFUSED = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "none was sent",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it has expired",
    "TLSV1_ALERT_UNKNOWN_CA": "its issuer is not the authority that the agent knows",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "it is not for clients",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "it was revoked",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the agent cannot use it",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the agent cannot use it",
    "TLSV1_ALERT_DECRYPT_ERROR": "its signature is wrong",
    "TLSV1_ALERT_ACCESS_DENIED": "the agent denies access",
}
_OTHERS: dict[str, tuple[type[AgentError], str]] = {
    **dict.fromkeys(
        ("TLSV1_ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS_AVAILABLE", "VERSION_TOO_LOW"),
        (AgentVersionError, "what answers there knows no TLS of version 1.2 or newer"),
    ),
    **dict.fromkeys(
        ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"),
        (NotAnAgentError, "what answers there does not speak TLS"),
    ),
}


@contextmanager
def connected(place: Tls, files: Mapping[str, str], *, server_name: str | None = None) -> Iterator[Agent]:
    """Open a channel with the certificate, key and ca of `files`; `server_name` is whom to expect, the host by default.

    Raises NoRouteError, AgentNotThereError, CertificateError, AgentError.
    """
    expected = server_name or place.host
    context = _context(place, files)
    address = _check(place, context, expected)
    contents = {key: _read(place, path) for key, path in files.items()}
    credentials = grpc.ssl_channel_credentials(contents["ca"], contents["key"], contents["certificate"])
    options = (
        *CHANNEL_OPTIONS,
        # The address that was just tried: a name may have several, and a proxy is for the web.
        ("grpc.ssl_target_name_override", expected),
        ("grpc.enable_http_proxy", 0),
        ("grpc.keepalive_time_ms", 60_000),
    )
    with calling(place.name, grpc.secure_channel(address, credentials, options=options)) as agent:
        yield agent


def _context(place: Tls, files: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    for path in files.values():
        _read(place, path)
    path = files["ca"]
    try:
        context.load_verify_locations(cafile=path)
        path = f"{files['certificate']} and {files['key']}"
        # A passphrase would be asked for in the midst of things.
        context.load_cert_chain(files["certificate"], files["key"], password="")
    except (ssl.SSLError, OSError) as error:
        why = (getattr(error, "reason", None) or str(error)).replace("_", " ").lower()
        raise CertificateError(f"connecting to {place.name}: reading {path}: {why}", _ISSUE) from error
    return context


def _read(place: Tls, path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError as error:
        raise CertificateError(
            f"connecting to {place.name}: reading {path}: {error.strerror}",
            f"{_ISSUE}; its files go there, or are named in the configuration under [tls]",
        ) from error


def _check(place: Tls, context: ssl.SSLContext, expected: str) -> str:
    """Make one handshake; gives the address as gRPC takes it."""
    with _connection(place) as plain:
        address = plain.getpeername()
        try:
            with context.wrap_socket(plain, server_hostname=expected) as secured:
                # The agent speaks first; what it thinks of the certificate comes here too.
                head = secured.recv(FRAME_HEAD_BYTES)
        except (ssl.SSLError, OSError) as error:
            raise _wrong(place, error) from error
    if not head:
        raise _closed(place)
    if not begins_http2(head):
        raise NotAnAgentError(f"connecting to {place.name}: what answers there is no freezeframe agent", _LISTEN)
    version = ipaddress.ip_address(address[0].partition("%")[0]).version
    return f"ipv4:{address[0]}:{address[1]}" if version == 4 else f"ipv6:[{address[0]}]:{address[1]}"  # noqa: PLR2004


def _connection(place: Tls) -> socket.socket:
    doing = f"connecting to {place.name}"
    try:
        connection = socket.create_connection((place.host, place.port), CONNECT_S)
    except UnicodeError as error:
        # Before anybody is asked: an empty or too long part between the dots.
        raise NoRouteError(f"{doing}: {place.host[:80]} is no name of a host", "check the name of the host") from error
    except socket.gaierror as error:
        raise NoRouteError(f"{doing}: {place.host}: {error.strerror}", "check the name of the host") from error
    except ConnectionRefusedError as error:
        raise AgentNotThereError(f"{doing}: nothing listens on port {place.port} there", _LISTEN) from error
    except TimeoutError as error:
        raise NoRouteError(
            f"{doing}: no answer within {CONNECT_S:.0f} s",
            f"is the host up, and port {place.port} open between here and there? Over ssh: ssh://{place.host}",
        ) from error
    except OSError as error:
        kind = NoRouteError if error.errno in _UNREACHABLE else AgentNotThereError
        raise kind(f"{doing}: {error.strerror}", f"look at the way there: ip route get {place.host}") from error
    connection.settimeout(ANSWER_S)
    return connection


def _wrong(place: Tls, error: OSError) -> AgentError:
    """Say what a failed handshake means."""
    doing = f"connecting to {place.name}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return CertificateError(
            f"{doing}: the agent's certificate: {error.verify_message}",
            "either another host answers there, or that agent needs a new one: freezeframe-agentd certs issue",
        )
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    if reason in _REFUSED:
        return CertificateError(f"{doing}: the agent does not accept your certificate: {_REFUSED[reason]}", _ISSUE)
    if isinstance(error, TimeoutError):
        return AgentNotThereError(
            f"{doing}: it takes connections, and nothing answers", "the agent hangs or is stopped: look at that host"
        )
    if isinstance(error, (ssl.SSLEOFError, ConnectionError)):
        return _closed(place)
    unnamed = (AgentNotThereError, f"TLS: {(reason or str(error)).replace('_', ' ').lower()}")
    kind, sentence = _OTHERS.get(reason, unnamed)
    return kind(f"{doing}: {sentence}", _LISTEN)


def _closed(place: Tls) -> BusyError:
    return BusyError(
        f"connecting to {place.name}: the agent closed the connection: too many are open, or come in a second",
        "try again in some seconds; the agent's log says more, and remote.max_connections is the bound",
    )
