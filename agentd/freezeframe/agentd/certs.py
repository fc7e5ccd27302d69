"""A small certificate authority for a fleet: who may call an agent, in which role, and which agent it is.

Three kinds of certificate, all of P-256: the authority (ca.crt, ca.key), an agent's (its names and addresses; for
servers alone), a client's (a name and a role; for clients alone). A key is 0600 from its first instant and is never
written over another without being asked to.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from freezeframe.agentd.errors import CertificateError
from freezeframe.agentd.roles import Role
from freezeframe.agentd.tls import ROLE_URI

# Clocks of a fleet differ.
_EARLIER = timedelta(hours=1)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}", re.ASCII)
_HOST_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}", re.ASCII)
# Of a common name (X.520); who connects looks at the alternative names.
_MOST_LETTERS = 64
# A client that comes through a tunnel asks for this name.
_TUNNEL = ("localhost", "127.0.0.1", "::1")


def init(directory: str, *, days: int, force: bool, begins: datetime | None = None) -> tuple[str, ...]:
    """Make an authority in `directory`; gives the paths written. Raises CertificateError."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "freezeframe authority")])
    certificate = (
        _builder(name, name, key.public_key(), days, begins)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    pair = _pair(directory, "ca", certificate, key, force=force)
    return _put(directory, pair)


def issue_agent(
    directory: str, names: Sequence[str], *, out: str, days: int, force: bool, begins: datetime | None = None
) -> tuple[str, ...]:
    """Issue the certificate of the agent that `names`, host names and addresses, lead to. Raises CertificateError."""
    alternatives = [_alternative(name) for name in dict.fromkeys((*names, *_TUNNEL))]
    return _issue(
        directory, names[0], alternatives, ExtendedKeyUsageOID.SERVER_AUTH, out=out, stem="agent", days=days,
        force=force, begins=begins,
    )  # fmt: skip


def issue_client(
    directory: str, name: str, role: Role, *, out: str, days: int, force: bool, begins: datetime | None = None
) -> tuple[str, ...]:
    """Issue the certificate with which `name` calls agents in `role`. Raises CertificateError."""
    if _NAME.fullmatch(name) is None:
        raise CertificateError(f"{name!r} is no name for a certificate", "letters, digits and . _ - @, 64 of them")
    alternatives = [x509.UniformResourceIdentifier(f"{ROLE_URI}{role.label}")]
    return _issue(
        directory, name, alternatives, ExtendedKeyUsageOID.CLIENT_AUTH, out=out, stem="client", days=days,
        force=force, begins=begins,
    )  # fmt: skip


def _issue(
    directory: str,
    name: str,
    alternatives: Sequence[x509.GeneralName],
    purpose: x509.ObjectIdentifier,
    *,
    out: str,
    stem: str,
    days: int,
    force: bool,
    begins: datetime | None,
) -> tuple[str, ...]:
    authority, authority_key = _authority(directory)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:_MOST_LETTERS])])
    certificate = (
        _builder(subject, authority.subject, key.public_key(), days, begins)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    files = _pair(out, stem, certificate, key, force=force)
    if os.path.abspath(out) != os.path.abspath(directory):
        files += (_copy(authority, out, force=force),)
    return _put(out, files)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int, begins: datetime | None = None
) -> x509.CertificateBuilder:
    begins = begins or datetime.now(tz=timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins - _EARLIER)
        .not_valid_after(begins + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _alternative(name: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(name))
    if _HOST_NAME.fullmatch(name) is None:
        raise CertificateError(f"{name!r} is neither a host name nor an address", "name what clients will connect to")
    return x509.DNSName(name)


def _authority(directory: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate, key = (os.path.join(directory, name) for name in ("ca.crt", "ca.key"))
    path = certificate
    try:
        with open(path, "rb") as stream:
            authority = x509.load_pem_x509_certificate(stream.read())
        # What is damaged inside comes to light when it is read.
        public, _ = authority.public_key(), authority.subject
        begin, end = authority.not_valid_before_utc, authority.not_valid_after_utc
        path = key
        with open(path, "rb") as stream:
            private = serialization.load_pem_private_key(stream.read(), None)
    except FileNotFoundError as error:
        raise CertificateError(
            f"reading the authority's {path}: {error.strerror}", "make one: freezeframe-agentd certs init"
        ) from error
    except OSError as error:
        raise CertificateError(
            f"reading the authority's {path}: {error.strerror}", "run this as the user that the authority belongs to"
        ) from error
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise CertificateError(
            f"reading the authority's {path}: it is not what certs init makes",
            "restore the pair, or begin anew: freezeframe-agentd certs init --force",
        ) from error
    if not isinstance(private, ec.EllipticCurvePrivateKey) or private.public_key() != public:
        raise CertificateError(f"{key} is not the key of {certificate}", "restore the pair, or begin anew: certs init")
    now = datetime.now(tz=timezone.utc)
    if not begin <= now <= end:
        raise CertificateError(
            f"{certificate} is valid from {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC, and it is "
            f"{now:%Y-%m-%d %H:%M} now: what it signs is good for nothing",
            "set this host's clock, or begin anew: freezeframe-agentd certs init --force",
        )
    return authority, private


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    path: str
    data: bytes
    mode: int
    # Whether one that is there goes.
    replaces: bool


def _pair(
    directory: str, stem: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, *, force: bool
) -> tuple[_File, ...]:
    """Give what is to be written of a certificate. Raises CertificateError where it is there already."""
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    files = (
        _File(path=os.path.join(directory, f"{stem}.key"), data=private, mode=0o600, replaces=force),
        _File(
            path=os.path.join(directory, f"{stem}.crt"), data=certificate.public_bytes(pem), mode=0o644, replaces=force
        ),
    )
    for each in files:
        if os.path.lexists(each.path) and not force:
            raise CertificateError(
                f"{each.path} is there already", "name another directory, or replace it with --force"
            )
    return files


def _copy(authority: x509.Certificate, out: str, *, force: bool) -> _File:
    """Give the copy of an authority's certificate. Raises CertificateError where that of another one is there."""
    path = os.path.join(out, "ca.crt")
    data = authority.public_bytes(serialization.Encoding.PEM)
    # What cannot be read is no copy of it either.
    with contextlib.suppress(OSError), open(path, "rb") as stream:
        if stream.read() == data:
            force = True
    if os.path.lexists(path) and not force:
        raise CertificateError(
            f"{path} is there already, of another authority", "name another directory, or replace it with --force"
        )
    return _File(path=path, data=data, mode=0o644, replaces=True)


def _put(directory: str, files: Sequence[_File]) -> tuple[str, ...]:
    """Write all of them beside, then rename: a full disk costs no key that is there, and leaves no half of a pair.

    Whoever reads one sees the old one or the new one. Links are replaced, not followed.
    """
    doing = f"making {directory}"
    made = []
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        for each in files:
            doing = f"writing {each.path}"
            beside = f"{each.path}.new"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside)
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            made.append(beside)
            with open(descriptor, "wb") as stream:
                stream.write(each.data)
                os.fchmod(descriptor, each.mode)
        for each, beside in zip(files, made, strict=True):
            doing = f"writing {each.path}"
            (os.replace if each.replaces else os.link)(beside, each.path)
    except OSError as error:
        raise CertificateError(f"{doing}: {error.strerror}", "choose another directory") from error
    finally:
        for beside in made:
            with contextlib.suppress(OSError):
                os.unlink(beside)
    return tuple(each.path for each in files)
