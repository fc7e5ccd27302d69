"""Secrets of 12 kinds, as they are written in the places from which a snapshot may take them, and how to find them."""

from __future__ import annotations

import base64
import html
import random
import re
import string
from urllib.parse import quote

_RANDOM = random.Random(7)


def _key(length: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    return "a1B" + "".join(_RANDOM.choice(alphabet) for _ in range(length - 3))


# Kind -> how it is written, and the secret in it.
KINDS = {
    "openai": ("{}", f"sk-proj-{_key(40)}"),
    "huggingface": ("{}", f"hf_{_key(34)}"),
    "github": ("{}", f"ghp_{_key(36)}"),
    "aws": ("{}", "AKIA" + "Q4Z7" * 4),
    "slack": ("{}", f"xoxb-123456789012-{_key(24)}"),
    "google": ("{}", f"AIza{_key(35)}"),
    "jwt": ("{}", f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI0MiJ9.{_key(43)}"),
    "pem": ("-----BEGIN PRIVATE KEY-----{}-----END PRIVATE KEY-----", _key(120)),
    "random": ("{}", "q7Rk2Vx9Lm4Tz8Wc3Np6Yb1Hd5Js0Gf"),
    "password": ("db_password={}", "tangerine-Falcon!9"),
    "userinfo": ("postgres://svc:{}@db.internal:5432/x", "Plum7Quartz"),
    "bearer": ("Authorization: Bearer {}", "opaque.Session-7788"),
}
FORMS = ("plain", "url", "base64", "split", "split-url")
PLACES = ("argv", "environment", "url", "header", "log", "path", "comm", "local")


def written(kind: str, form: str) -> str:
    """Write a secret of this kind in this form."""
    template, secret = KINDS[kind]
    if form.startswith("split"):
        middle = len(secret) // 2
        text = template.format(secret[:middle] + "\n" + secret[middle:])
        return quote(text, safe="") if form == "split-url" else text
    text = template.format(secret)
    if form == "url":
        return quote(text, safe="")
    return base64.b64encode(text.encode()).decode() if form == "base64" else text


def found(kind: str, text: str) -> list[str]:
    """Give what a reader of `text` could know of the secret, whatever a layout did to its characters."""
    secret = KINDS[kind][1]
    middle = len(secret) // 2
    forms = {secret, quote(secret, safe=""), secret[:middle], secret[middle:]}
    for before in range(3):
        # What base64 makes of it at any place, but for its first and last characters.
        forms.add(base64.b64encode(b"x" * before + secret.encode()).decode()[4:-4])
    seen = html.unescape(text)
    views = (text, seen, seen.replace("\\", ""), re.sub(r"\\n|\s", "", seen))
    return sorted(form for form in forms if any(form in view for view in views))
