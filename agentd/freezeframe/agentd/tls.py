"""Mutual TLS of the listener: the context, what went wrong in a handshake, who a certificate is and which role it has.

A role is a name in the certificate: the URI freezeframe://role/capture among its alternative names, signed by the
authority of the agent's configuration. TLS 1.2 and newer.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import stat
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from freezeframe.agentd.config import Remote
from freezeframe.agentd.errors import ConfigError
from freezeframe.agentd.roles import Role

if TYPE_CHECKING:
    from cryptography import x509

ROLE_URI = "freezeframe://role/"
_NAME_CHARACTERS = 64
_COMMON_NAME = "2.5.4.3"
_MAKE = "make them: freezeframe-agentd certs init, then certs issue"

# What OpenSSL calls it: what it is.
_CAUSES = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it has no certificate",
    "UNSUPPORTED_PROTOCOL": "its TLS is older than 1.2",
    "NO_PROTOCOLS_AVAILABLE": "its TLS is older than 1.2",
    "VERSION_TOO_LOW": "its TLS is older than 1.2",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "HTTP_REQUEST": "it does not speak TLS, but HTTP",
    "HTTPS_PROXY_REQUEST": "it does not speak TLS, but HTTP",
    "PACKET_LENGTH_TOO_LONG": "it does not speak TLS",
    "NO_SHARED_CIPHER": "it shares no cipher with this agent",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust who issued this agent's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "to it this agent's certificate has expired",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept this agent's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not accept this agent's certificate",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who a certificate says that it is."""

    name: str
    # The highest one that it names; None when it names none.
    role: Role | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The files as they were read."""

    context: ssl.SSLContext
    # Of the agent's own certificate.
    name: str
    ends: datetime
    # Tells files that have changed from those that have not.
    state: tuple[tuple[int, int, int], ...]


def state_of(remote: Remote) -> tuple[tuple[int, int, int], ...]:
    """Look at the files, without reading them. Raises OSError."""
    found = [os.stat(path) for path in (remote.certificate, remote.key, remote.client_ca)]
    return tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in found)


def load(remote: Remote) -> Loaded:
    """Read the three files. Raises ConfigError, which names the file."""
    from cryptography import x509  # noqa: PLC0415 - megabytes that an agent without a listener need not have

    path = remote.certificate
    try:
        state = state_of(remote)
        path = remote.key
        _check_private(path)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        # No session outlives a look at the certificate.
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
        context.num_tickets = 0
        context.set_alpn_protocols(["h2"])
        path = remote.client_ca
        context.load_verify_locations(cafile=path)
        path = remote.certificate
        with open(path, "rb") as stream:
            own = x509.load_pem_x509_certificate(stream.read())
        # What is damaged inside comes to light when it is read.
        name, ends = _common_name(own), own.not_valid_after_utc
        path = f"{remote.certificate} and {remote.key}"
        # A passphrase would be asked for on the terminal.
        context.load_cert_chain(remote.certificate, remote.key, password="")
    except ssl.SSLError as error:
        why = (error.reason or str(error)).replace("_", " ").lower()
        raise ConfigError(f"reading {path} for TLS: {why}", _MAKE) from error
    except OSError as error:
        raise ConfigError(f"reading {error.filename or path} for TLS: {error.strerror}", _MAKE) from error
    except (ValueError, x509.InvalidVersion) as error:
        raise ConfigError(f"reading {path} for TLS: it is no certificate in PEM", _MAKE) from error
    return Loaded(context=context, name=name, ends=ends, state=state)


def _check_private(path: str) -> None:
    if os.stat(path).st_mode & stat.S_IRWXO:
        raise ConfigError(f"others may read {path}, the agent's private key", f"chmod 600 {path}")


def _common_name(certificate: x509.Certificate) -> str:
    names = [each.value for each in certificate.subject if each.oid.dotted_string == _COMMON_NAME]
    return str(names[0]) if names else "nobody"


def identity(certificate: dict[str, Any]) -> Identity:
    """Read a verified certificate, as SSLObject.getpeercert gives it."""
    subject = certificate.get("subject") or ()
    names = [value for part in subject for key, value in part if key == "commonName"]
    alternatives = certificate.get("subjectAltName") or ()
    roles = {f"{ROLE_URI}{role.label}": role for role in Role}
    found = [roles[value] for key, value in alternatives if key == "URI" and value in roles]
    return Identity(name=str(names[0])[:_NAME_CHARACTERS] if names else "nameless", role=max(found, default=None))


def cause(error: Exception) -> str:
    """Say why a handshake failed, of the peer as "it"."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate was refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        return _CAUSES.get(reason, f"TLS: {(reason or str(error)).replace('_', ' ').lower()}")
    if isinstance(error, asyncio.TimeoutError):
        return "it did not end the TLS handshake in time"
    return "it closed the connection in the TLS handshake"
