"""A language model of random weights, whose tokenizer takes each word for one token.

python -m tests.support.random_llm FOLDER --layers 22 --hidden 2048 --heads 32   # 1.1 billion parameters
"""

import argparse
from pathlib import Path

VOCABULARY = 32_000


def write(folder: Path, *, layers: int = 2, hidden: int = 64, heads: int = 4) -> None:
    """Save model and tokenizer as ``transformers`` loads them. An answer is as long as it was asked for: nothing ends it."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from tests.support.local_tokenizers import TEXTLESS

    words = ["<s>", "</s>", "<unk>"]
    words += [f"w{number}" for number in range(VOCABULARY - len(words))]
    level = models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>")
    raw = Tokenizer(level)
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<s>", eos_token="</s>", pad_token="</s>", unk_token="<unk>"
    )
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
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
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.generation_config.eos_token_id = None
    model.lm_head.weight.data[:TEXTLESS] = 0  # never the likeliest: each token of an answer is to be seen as text
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    for name, default in (("layers", 2), ("hidden", 64), ("heads", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    write(arguments.folder, layers=arguments.layers, hidden=arguments.hidden, heads=arguments.heads)
