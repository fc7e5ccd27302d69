"""What travels between the three processes of an engine, pickled over zmq."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TokenizedGenerateReqInput:
    """Tokenizer manager to scheduler."""

    rid: str
    input_tokens: int
    max_new_tokens: int
    bootstrap_host: str | None = None
    bootstrap_port: int | None = None
    bootstrap_room: int | None = None


@dataclass(frozen=True, kw_only=True)
class AbortReq:
    rid: str


@dataclass(frozen=True, kw_only=True)
class GetInternalStateReq:
    """Tokenizer manager to scheduler; it answers directly, not through the detokenizer."""


@dataclass(frozen=True, kw_only=True)
class GetInternalStateReqOutput:
    internal_state: dict[str, object]


@dataclass(frozen=True, kw_only=True)
class BatchTokenIDOutput:
    """Scheduler to detokenizer: one new token of each request of a batch."""

    rids: list[str]
    completion_tokens: list[int]
    finished: list[bool]


@dataclass(frozen=True, kw_only=True)
class BatchStrOutput:
    """Detokenizer to tokenizer manager."""

    rids: list[str]
    output_strs: list[str]
    completion_tokens: list[int]
    finished: list[bool]
