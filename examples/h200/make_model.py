"""Writes the language model of engine.yaml: a Llama of 0.582 billion random weights in bf16, with a token for each word.

``python examples/h200/make_model.py /tmp/model``, with torch and transformers; ``--layers``, ``--hidden`` and ``--heads`` make another size.
"""

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 32_000
SPECIAL = ["<s>", "</s>", "<unk>"]
ROLES = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", "unk_token": "<unk>"}


def tokenizer() -> PreTrainedTokenizerFast:
    """Each word of a text is a token: ``w0``, ``w1`` and so on."""
    words = [*SPECIAL, *(f"w{number}" for number in range(VOCABULARY - len(SPECIAL)))]
    raw = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=ROLES["unk_token"]))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    made = PreTrainedTokenizerFast(tokenizer_object=raw, **ROLES)
    made.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    return made


def model(layers: int, hidden: int, heads: int) -> LlamaForCausalLM:
    """An answer is as long as it was asked for: nothing ends it."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 4 // 64 * 64,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 4),
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    torch.manual_seed(1)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        made = LlamaForCausalLM(config).to(torch.bfloat16)
    made.generation_config.eos_token_id = None
    made.lm_head.weight.data[: len(SPECIAL)] = 0  # never the likeliest: each token of an answer is to be seen as text
    return made


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    for name, default in (("layers", 10), ("hidden", 2048), ("heads", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    model(arguments.layers, arguments.hidden, arguments.heads).save_pretrained(arguments.folder)
    tokenizer().save_pretrained(arguments.folder)
