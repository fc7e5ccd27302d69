"""A tiny local tokenizer: the router loads that of a worker's model path, and asks a model hub for any other string."""

from __future__ import annotations

import json
from pathlib import Path

CHAT_TEMPLATE = "{% for m in messages %}<s> {{ m['content'] }} </s>{% endfor %}"
SPECIAL = ("[UNK]", "<s>", "</s>")
WORDS = 64


def write_tokenizer(folder: Path, *, words: int = WORDS) -> None:
    """Write tokenizer.json and tokenizer_config.json of a word-level tokenizer into `folder`."""
    folder.mkdir(exist_ok=True)
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *(f"t{n}" for n in range(words))])}
    added = [
        {
            "id": n,
            "content": word,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for n, word in enumerate(SPECIAL)
    ]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "[UNK]",
        "model_max_length": 2048,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
