"""The protobuf JSON mapping with the proto's field names, in pieces, so that 20 MB need no second copy.

Fields without presence are always printed. The output is UTF-8; characters that could act on a terminal are written as
JSON escapes, which a parser turns back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from freezeframe.client.render.guard import clean_json


def stream(
    message: Message, only: Sequence[str] = (), extra: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[str]:
    """Give the JSON of `message` piece by piece, one member of a list per line; `only` names top-level fields.

    `extra` are members that no message has, such as what is worked out from it.
    """
    yield "{"
    separator = "\n"
    for field in message.DESCRIPTOR.fields:
        if only and field.name not in only:
            continue
        value = getattr(message, field.name)
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            if field.has_presence and not message.HasField(field.name):
                continue
            yield f'{separator} "{field.name}": {_dump(_plain(message)[field.name])}'
        elif _is_repeated(field):
            yield f'{separator} "{field.name}": ['
            inner = "\n"
            for item in value:
                yield f"{inner}  {_dump(_plain(item))}"
                inner = ",\n"
            yield "\n ]" if inner != "\n" else "]"
        elif message.HasField(field.name):
            yield f'{separator} "{field.name}": {_dump(_plain(value))}'
        else:
            continue
        separator = ",\n"
    for name, plain in extra.items():
        yield f'{separator} "{name}": {_dump(plain)}'
        separator = ",\n"
    yield "\n}\n"


def line(message: Message) -> str:
    """One message on one line."""
    return _dump(_plain(message))


def array(pieces: Iterable[Iterator[str]]) -> Iterator[str]:
    """Give several messages as one JSON array."""
    yield "["
    for number, each in enumerate(pieces):
        yield "\n" if number == 0 else ","
        yield from each
    yield "]\n"


def fleet(page: Iterator[str], hosts: Iterable[Iterator[str]]) -> Iterator[str]:
    """Give what is known of several hosts together, and each of them, as one JSON object."""
    yield '{"fleet": '
    yield from page
    yield ', "hosts": '
    yield from array(hosts)
    yield "}\n"


def _is_repeated(field: Any) -> bool:
    # Newer protobuf warns about `label`, older ones lack `is_repeated`.
    probe = getattr(field, "is_repeated", None)
    return bool(probe) if probe is not None else bool(field.label == field.LABEL_REPEATED)


def _plain(message: Message) -> dict[str, Any]:
    return json_format.MessageToDict(
        message, always_print_fields_with_no_presence=True, preserving_proto_field_name=True
    )


def _dump(value: Any) -> str:
    return clean_json(json.dumps(value, ensure_ascii=False, separators=(", ", ": ")))
