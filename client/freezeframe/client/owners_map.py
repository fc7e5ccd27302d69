"""The owner's map of a redaction: the key of its tokens, and what each stands for. It never leaves with a report."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from freezeframe.client import files
from freezeframe.client.errors import RedactMapError

_KEY_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnersMap:
    """The key and the tokens so far."""

    key: bytes
    tokens: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str | None) -> OwnersMap:
        """Read the map at `path`; a fresh one where there is none. Raises RedactMapError."""
        if path is None or not os.path.lexists(path):
            return cls(key=secrets.token_bytes(_KEY_BYTES))
        try:
            with open(path, encoding="utf-8") as source:
                content = json.load(source)
            key = bytes.fromhex(content["key"])
            tokens = {str(token): str(value) for token, value in content["tokens"].items()}
        except OSError as error:
            raise RedactMapError(f"reading {path}: {error.strerror}", "name another file") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RedactMapError(f"reading {path}: it is no map of a redaction", "name another file") from error
        if len(key) != _KEY_BYTES:
            # With a shorter one, whoever has a report could try what its tokens stand for.
            raise RedactMapError(f"reading {path}: its key does not have {_KEY_BYTES} bytes", "name another file")
        return cls(key=key, tokens=tokens)

    def save(self, path: str, tokens: Mapping[str, str]) -> str:
        """Write the map with `tokens` added (0600) and give its path. Raises SaveError."""
        content = {"key": self.key.hex(), "tokens": {**self.tokens, **tokens}}
        return files.write((json.dumps(content, indent=1) + "\n").encode(), path)
