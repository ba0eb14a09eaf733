"""A model of images and texts with random weights, whose tokenizer takes each letter for one token.

Its files are written here as checkpoints on the Hub have them: to make them with ``transformers`` costs seven seconds of
computing, most of it for what that imports.
"""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.support.local_tokenizers import TEXTLESS, letters

SIDE, PATCH = 32, 8
"""Pixels; an image is brought to SIDE x SIDE and is as many tokens as it then has patches of PATCH x PATCH."""
IMAGE_TOKENS = (SIDE // PATCH) ** 2
TEMPLATE = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<image>{% endif %}{% endfor %}{% endfor %}"
)
LAYERS, HEADS = 2, 4
SEEN, SEEN_WITHIN = 32, 64
"""Widths of the network that sees, and of its layers within; those of the one that answers are twice as much."""
TOLD, TOLD_WITHIN = 64, 128


def write(folder: Path) -> None:
    """Save model and processor as ``transformers`` loads them. An answer is as long as it was asked for: nothing ends it."""
    folder.mkdir()
    tokenizer = letters()
    tokenizer.add_special_tokens(["<image>"])
    vocabulary, image = tokenizer.get_vocab_size(), tokenizer.token_to_id("<image>")
    layers = {"num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    vision = {"hidden_size": SEEN, "intermediate_size": SEEN_WITHIN, "image_size": SIDE, "patch_size": PATCH}
    text = {"vocab_size": vocabulary, "hidden_size": TOLD, "intermediate_size": TOLD_WITHIN}
    described = {
        "config.json": {
            "architectures": ["LlavaForConditionalGeneration"],
            "model_type": "llava",
            "dtype": "float32",
            "image_token_index": image,
            "vision_feature_select_strategy": "default",
            "vision_config": {"model_type": "clip_vision_model", **vision, **layers},
            "text_config": {"model_type": "llama", **text, **layers},
        },
        "generation_config.json": {"bos_token_id": tokenizer.token_to_id("<s>")},
        "processor_config.json": {
            "processor_class": "LlavaProcessor",
            "image_processor": {
                "image_processor_type": "CLIPImageProcessor",
                "size": {"shortest_edge": SIDE},
                "crop_size": {"height": SIDE, "width": SIDE},
            },
            "image_token": "<image>",
            "patch_size": PATCH,
            "num_additional_image_tokens": 1,
            "vision_feature_select_strategy": "default",
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "processor_class": "LlavaProcessor",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "pad_token": "</s>",
            "unk_token": "<unk>",
            "extra_special_tokens": ["<image>"],
        },
    }
    for name, content in described.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    tokenizer.save(str(folder / "tokenizer.json"))
    made = {name: _random(name, shape) for name, shape in _shapes(vocabulary).items()}
    # Never the likeliest: an answer is to be seen as text.
    made["language_model.lm_head.weight"][[*range(TEXTLESS), image]] = 0
    save_file(made, folder / "model.safetensors", metadata={"format": "pt"})


def _random(name: str, shape: tuple[int, ...]) -> np.ndarray:
    if "norm" in name or "layrnorm" in name:
        return np.full(shape, float(name.endswith("weight")), np.float32)
    draw = np.random.default_rng([*name.encode()])
    return draw.normal(0, 0.02, shape).astype(np.float32)


def _shapes(vocabulary: int) -> dict[str, tuple[int, ...]]:
    tower, told = "vision_tower.vision_model", "language_model.model"
    seen: dict[str, tuple[int, ...]] = {
        "embeddings.class_embedding": (SEEN,),
        "embeddings.patch_embedding.weight": (SEEN, 3, PATCH, PATCH),
        "embeddings.position_embedding.weight": (IMAGE_TOKENS + 1, SEEN),
        "pre_layrnorm.weight": (SEEN,),
        "pre_layrnorm.bias": (SEEN,),
        "post_layernorm.weight": (SEEN,),
        "post_layernorm.bias": (SEEN,),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "language_model.lm_head.weight": (vocabulary, TOLD),
        f"{told}.embed_tokens.weight": (vocabulary, TOLD),
        f"{told}.norm.weight": (TOLD,),
        **_linear("multi_modal_projector.linear_1", TOLD, SEEN),
        **_linear("multi_modal_projector.linear_2", TOLD, TOLD),
    }
    for layer in range(LAYERS):
        place = f"encoder.layers.{layer}"
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            seen |= _linear(f"{place}.self_attn.{part}", SEEN, SEEN)
        seen |= _linear(f"{place}.mlp.fc1", SEEN_WITHIN, SEEN) | _linear(f"{place}.mlp.fc2", SEEN, SEEN_WITHIN)
        for part in ("layer_norm1", "layer_norm2"):
            seen |= {f"{place}.{part}.weight": (SEEN,), f"{place}.{part}.bias": (SEEN,)}
        place = f"{told}.layers.{layer}"
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            shapes[f"{place}.self_attn.{part}.weight"] = (TOLD, TOLD)
        for part in ("gate_proj", "up_proj"):
            shapes[f"{place}.mlp.{part}.weight"] = (TOLD_WITHIN, TOLD)
        shapes[f"{place}.mlp.down_proj.weight"] = (TOLD, TOLD_WITHIN)
        for part in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{place}.{part}.weight"] = (TOLD,)
    return shapes | {f"{tower}.{name}": shape for name, shape in seen.items()}


def _linear(name: str, into: int, out_of: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (into, out_of), f"{name}.bias": (into,)}
