"""Finds secrets in text: by their shape, by the name before them, by their disorder; seen through encodings. Pure.

Ids, hashes, addresses and numbers are none: a value of their shape is a secret only behind the name of one.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

from freezeframe.client.report.views import View, views

# What the redaction puts in the place of a secret.
TOKEN = re.compile(r"SECRET-[0-9a-f]{10}")

# Keys that say what they are; the issuers document these beginnings.
_SHAPES = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|(?<![A-Za-z0-9])(?:"
    r"sk-(?:proj|ant|svcacct|admin|or|lf)-[\w-]{6,}"
    r"|sk-(?=[\w-]*\d)[A-Za-z0-9][\w-]{9,}"
    r"|(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{6,}"
    r"|gh[pousr]_[A-Za-z0-9]{6,}|github_pat_\w{6,}"
    r"|gl(?:pat|ptt|dt|rt|cbt)-[\w-]{6,}"
    r"|hf_(?=[A-Za-z0-9]*[A-Z0-9])[A-Za-z0-9]{8,}"
    r"|nvapi-[\w-]{6,}|npm_(?=[A-Za-z0-9]*\d)[A-Za-z0-9]{8,}|pypi-[A-Za-z0-9_-]{16,}|dop_v1_[0-9a-f]{6,}"
    r"|xox[abeoprs]-[\w-]{6,}|xapp-[\w-]{6,}"
    r"|(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{8,}"
    r"|AIza[\w-]{8,}|ya29\.[\w-]{8,}|SG\.[\w-]{8,}(?:\.[\w-]+)?"
    r"|eyJ[\w-]{8,}(?:\.[\w-]+){0,2}"
    r")"
)
# Names whose value is a secret. "token" counts at the end of a name only: tokens are what these programs count.
_NAME = (
    r"(?:[\w.-]{0,60}(?:passw(?:or)?d|passphrase|passwd|secret|api[_-]?key|access[_-]?key|private[_-]?key|credentials?"
    r"|authorization|signature)[\w-]{0,20}"
    r"|(?:[\w.-]{0,60}[_.-])?(?<!bos_)(?<!eos_)(?<!pad_)(?<!stop_)(?<!unk_)(?<!sep_)(?<!mask_)(?<!next_)(?<!last_)"
    r"(?<!first_)(?<!new_)(?<!image_)(?<!per_)(?<!cls_)token|(?:[\w.-]{0,60}[_-])?pwd|sig|x-amz-[\w-]{1,40})"
)
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)
_NAMED = re.compile(
    rf"(?<![\w-])(?:--?)?{_NAME}\\?[\"']?(?:\s{{0,3}}[:=]{{1,2}}\s{{0,3}}|[ \t]+is[ \t]+)"
    rf"(?:(?:bearer|basic|token|digest)\s+)?"
    r"(?:\\?\"(?P<double>[^\"\\]{1,2000})|'(?P<single>[^']{1,2000})|(?P<bare>[^\s\"',;&)}\]>\\]{1,2000}))",
    re.IGNORECASE,
)
_FLAG = re.compile(rf"(?<!\S)--?{_NAME}[ \t]+(?P<bare>[^\s-][^\s]{{0,2000}})", re.IGNORECASE)
# The rest of the line belongs to the header.
_HEADER = re.compile(
    r"\b(?:proxy-authorization|authorization|set-cookie|cookie|x-(?:api|auth|amz|goog|functions)[\w-]{0,40}|api-key)"
    r"[\"']?[ \t]*:[ \t]*[\"']?(?:(?:bearer|basic|token|digest)[ \t]+)?(?P<rest>[^\r\n\"'\\]{1,4000})",
    re.IGNORECASE,
)
_HEADER_JOINED = re.compile(
    r"\b(?:proxy-authorization|authorization|set-cookie|cookie|x-(?:api|auth)[\w-]{0,40}|api-key)"
    r"[\"']?[ \t]*:[ \t]*[\"']?(?:(?:bearer|basic|token|digest)[ \t]+)?(?P<rest>[^\s\"'\\]{1,4000})",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\bbearer[ \t]+(?P<bare>(?=[^\s]*[\d._])[\w.~+/=-]{8,4000})", re.IGNORECASE)
_USERINFO = re.compile(r"[a-z][a-z0-9+.-]{1,15}://(?P<rest>[^/?#\s\"'<>]{1,500})@", re.IGNORECASE)
_QUERY = re.compile(
    r"(?:[a-z][a-z0-9+.-]{1,15}://|(?<![\w?])/)[^\s?\"'<>]{0,2000}\?(?P<query>[^\s#\"'<>]{1,4000})", re.IGNORECASE
)
_VALUE = re.compile(r"(?:^|[&;])[^=&;]{1,100}=(?P<rest>[^&;]{1,4000})")
_HARMLESS_VALUE = re.compile(r"true|false|none|null|-?\d{1,6}(?:\.\d{1,6})?", re.IGNORECASE)
# Values that are never secrets, whatever the name before them.
_NO_SECRET = re.compile(
    r"(?:true|false|none|null|yes|no|unset|set|not|missing|required|invalid|redacted|hidden|masked|default|str|bytes|int"
    r"|optional\S*|\W+|-?\d{1,8}(?:\.\d{1,6})?\S{0,3}|<\S*|\$\S*|.?…|[*x.]+)",
    re.IGNORECASE,
)

_WORD = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{16,}={0,2}")
# The same as one part of a path.
_PART = re.compile(r"(?<=/)[A-Za-z0-9+_-]{16,}={0,2}")
# A name before a value that makes it an id or a hash.
_OF_AN_ID = re.compile(
    r"(?:\b(?:sha\d{1,3}|md5|blake\w{1,3}|digest|commit|checksum|etag|[\w-]{0,40}id|rid|uuid|guid|span|trace|revision|hash)"
    r"[\"']?[ \t]{0,2}[:=-][ \t]{0,2}[\"']?)$",
    re.IGNORECASE,
)
_BEGINS_AS_ID = re.compile(
    r"(?:chatcmpl|cmpl|req|request|resp|msg|call|gen|run|trace|span|rid|batch|embd|score|rerank|gnt|conv|file|thread|asst"
    r"|sha\d{1,3}|GPU|MIG)[-_]"
)
# Mangled symbols of C++ and Rust.
_SYMBOL = re.compile(r"_?_(?:Z|R)[A-Z]?\w*\d")
_HEXADECIMAL = re.compile(r"[0-9A-Fa-f-]+")
_LEAST_DISORDERED = 20
_LEAST_ENCODED = 12
_LEAST_KNOWN = 6
# Changes between letters and digits in a name with a number in it.
_NUMBERS_OF_A_NAME = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A secret in a text: where, as characters of it, and what it is without its encoding."""

    begin: int
    end: int
    value: str


def is_secret_name(name: str) -> bool:
    """Say whether a variable, field or flag of this name holds a secret."""
    return _SECRET_NAME.fullmatch(name.lstrip("-")) is not None


def is_value(text: str) -> bool:
    """Say whether what follows the name of a secret can be one."""
    return len(text) > 3 and not _NO_SECRET.fullmatch(text) and not TOKEN.search(text)  # noqa: PLR2004


def is_disordered(word: str, least: int = _LEAST_DISORDERED) -> bool:
    """Say whether letters of both cases and digits change too often for a name that people chose."""
    part = max(re.split(r"[/_=-]", word), key=len)
    if len(part) < least or _HEXADECIMAL.fullmatch(part):
        return False
    kinds = ["d" if c.isdigit() else "u" if c.isupper() else "l" for c in part]
    if len(set(kinds)) < 3:  # noqa: PLR2004
        return False
    changes = [one + other for one, other in itertools.pairwise(kinds) if one != other]
    # A name in CamelCase changes twice a word; digits in it stand together.
    return len(changes) * 3 >= len(part) and sum("d" in change for change in changes) > _NUMBERS_OF_A_NAME


def find(text: str, known: re.Pattern[str] | None = None, *, disorder: bool = True) -> list[Found]:
    """Find the secrets of `text`; `known` (from `pattern_of`) matches those seen elsewhere, in any encoding.

    Without `disorder` a value is none for its disorder alone, as in a field for ids or symbols. Spans may overlap.
    """
    found: list[Found] = []
    for view in views(text):
        for begin, end, value in _in_view(view, known, disorder=disorder):
            # Another view would read a token again.
            if not TOKEN.search(view.text[begin:end]):
                first, last = view.original(begin, end)
                found.append(Found(begin=first, end=last, value=value))
    return found


def pattern_of(secrets: set[str]) -> re.Pattern[str] | None:
    """Give what matches these secrets as they are and in base64; None when there is nothing to look for."""
    forms: set[str] = set()
    for secret in secrets:
        if len(secret) >= _LEAST_KNOWN:
            forms.add(re.escape(secret))
            forms.update(_encoded(secret.encode()))
    if not forms:
        return None
    return re.compile("|".join(sorted(forms, key=lambda form: (-len(form), form))))


def forms(secret: str) -> tuple[str, ...]:
    """Give how a name may begin that holds this secret and no more."""
    return (secret, quote(secret, safe=""), base64.b64encode(secret.encode("utf-8", "replace")).decode())


def _encoded(secret: bytes) -> Iterator[str]:
    """Give what base64 makes of `secret` behind 0, 1 or 2 other bytes, with all that is around it in the same word."""
    for before in range(3):
        text = base64.b64encode(b"\0" * before + secret).decode().rstrip("=")
        core = text[(0, 2, 3)[before] : len(text) if (len(secret) + before) % 3 == 0 else -1]
        if len(core) >= _LEAST_KNOWN:
            for form in {core, core.translate({43: 45, 47: 95})}:
                yield rf"[A-Za-z0-9+/_-]*{re.escape(form)}[A-Za-z0-9+/_-]*={{0,2}}"


def _in_view(view: View, known: re.Pattern[str] | None, *, disorder: bool) -> Iterator[tuple[int, int, str]]:
    text = view.text
    if known is not None:
        yield from ((match.start(), match.end(), match[0]) for match in known.finditer(text))
    yield from _plain(text, joined=view.joined)
    for match in (*_WORD.finditer(text), *(_PART.finditer(text) if "/" in text else ())):
        word = match[0]
        hidden = _decoded(word)
        if (
            hidden is not None
            and any(
                (known is not None and known.search(seen.text)) or next(_plain(seen.text, joined=False), None)
                for seen in views(hidden)
            )
        ) or (
            disorder
            and not _is_id(word, text[max(0, match.start() - 60) : match.start()])
            and ((hidden is not None and len(word) >= _LEAST_DISORDERED) or is_disordered(word))
        ):
            yield match.start(), match.end(), word


def _plain(text: str, *, joined: bool) -> Iterator[tuple[int, int, str]]:
    """Find what shape or name tells."""
    yield from ((match.start(), match.end(), match[0]) for match in _SHAPES.finditer(text))
    yield from _named(text)
    for match in (_HEADER_JOINED if joined else _HEADER).finditer(text):
        if is_value(match["rest"].strip()):
            yield match.start("rest"), match.end("rest"), match["rest"]
    if "/" in text:
        yield from _in_url(text)


def _named(text: str) -> Iterator[tuple[int, int, str]]:
    for pattern in (_NAMED, _FLAG, _BEARER):
        for match in pattern.finditer(text):
            for group, value in match.groupdict().items():
                # "its first token: streams that" is prose.
                prose = match[0].lower().startswith("token:") and (value or "").isalpha()
                if value and is_value(value) and not prose:
                    yield match.start(group), match.end(group), value


def _in_url(text: str) -> Iterator[tuple[int, int, str]]:
    """Find a URL's user and password, and the values of its query."""
    for match in _USERINFO.finditer(text):
        yield match.start("rest"), match.end("rest"), match["rest"]
        _, colon, password = match["rest"].partition(":")
        if colon and is_value(password):
            yield match.end("rest") - len(password), match.end("rest"), password
    for match in _QUERY.finditer(text):
        at = match.start("query")
        for pair in _VALUE.finditer(match["query"]):
            if not _HARMLESS_VALUE.fullmatch(pair["rest"]):
                yield at + pair.start("rest"), at + pair.end("rest"), pair["rest"]


def _decoded(word: str) -> str | None:
    """Decode base64 that holds text; None where it holds none."""
    text = word.rstrip("=").translate({45: 43, 95: 47})
    if len(text) % 4 == 1:
        return None
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(data) < _LEAST_ENCODED or not all(0x20 <= byte < 0x7F or byte in b"\t\r\n" for byte in data):  # noqa: PLR2004
        return None
    return data.decode("ascii")


def _is_id(word: str, before: str) -> bool:
    return bool(
        _HEXADECIMAL.fullmatch(word) or _BEGINS_AS_ID.match(word) or _SYMBOL.match(word) or _OF_AN_ID.search(before)
    )
