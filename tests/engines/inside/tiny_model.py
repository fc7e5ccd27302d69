"""``tiny_model.py FOLDER``: a random Qwen3 of a million parameters and a tokenizer of a thousand words, made here.

Runs on the engines' Python, which has torch and transformers.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bed"))

import torch
from tokenizer_folder import SPECIAL, write_tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 1024


def main() -> None:
    folder = Path(sys.argv[1])
    if (folder / "model.safetensors").exists():
        return
    folder.mkdir(exist_ok=True)
    write_tokenizer(folder, words=VOCABULARY - len(SPECIAL))
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=2048, tie_word_embeddings=False,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


if __name__ == "__main__":
    main()
