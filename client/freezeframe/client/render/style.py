"""How text may look on one output: colour, characters, width."""

from __future__ import annotations

from dataclasses import dataclass

from freezeframe.client.render.document import Tone

_CODES = {
    Tone.STRONG: "1",
    Tone.GOOD: "1;32",
    Tone.BAD: "1;31",
    Tone.DOUBT: "1;33",
    Tone.QUIET: "2",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """What the output can show."""

    color: bool = False
    # Only ASCII: the locale cannot encode the arrow.
    ascii: bool = False
    # Prose is wrapped here.
    width: int = 80
    # Tables are cut here; None = never (a pipe).
    table_width: int | None = 80

    @property
    def arrow(self) -> str:
        """Mark between two hops."""
        return ">" if self.ascii else "▸"

    @property
    def ellipsis(self) -> str:
        """Mark where text was cut."""
        return "..." if self.ascii else "…"

    def paint(self, text: str, tone: Tone) -> str:
        """Colour `text`, which is clean already."""
        code = _CODES.get(tone)
        return f"\x1b[{code}m{text}\x1b[0m" if self.color and code and text else text

    def mark(self, text: str) -> str:
        """Make the holder stand out."""
        return f"\x1b[1;7m{text}\x1b[0m" if self.color else text
