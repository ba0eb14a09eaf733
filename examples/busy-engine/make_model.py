"""Writes what a server needs to know of a language model but its weights: the shape of Qwen3-4B, and a tokenizer of letters.

``python examples/busy-engine/make_model.py /tmp/busy-model``; with ``--load-format dummy`` vLLM draws the weights itself, 4 billion of them.
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCABULARY = 151_936
SPECIAL = ["<s>", "</s>", "<unk>"]
SHAPE = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "dtype": "bfloat16",
    "vocab_size": VOCABULARY,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "pad_token": "</s>",
    "unk_token": "<unk>",
    "model_max_length": 4096,
    "chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
}


def letters() -> Tokenizer:
    """Each letter of a text is a token; what the vocabulary has beyond them comes in answers alone, as a word of its own."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*SPECIAL, *alphabet]
    words += [f"Ġw{number}" for number in range(VOCABULARY - len(words))]
    made = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(SPECIAL)
    return made


def write(folder: Path) -> None:
    """The files of a checkpoint, as the Hub has them."""
    folder.mkdir(parents=True, exist_ok=True)
    letters().save(str(folder / "tokenizer.json"))
    for name, content in {"config.json": SHAPE, "tokenizer_config.json": TOKENIZER}.items():
        (folder / name).write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
