"""A model of images and texts with random weights, whose tokenizer takes each letter for one token."""

from pathlib import Path

SIDE, PATCH = 32, 8
"""Pixels; an image is brought to SIDE x SIDE and is as many tokens as it then has patches of PATCH x PATCH."""
IMAGE_TOKENS = (SIDE // PATCH) ** 2
TEMPLATE = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<image>{% endif %}{% endfor %}{% endfor %}"
)


def write(folder: Path) -> None:
    """Save model and processor as ``transformers`` loads them. An answer is as long as it was asked for: nothing ends it."""
    import torch
    from transformers import (
        CLIPImageProcessorPil,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
        PreTrainedTokenizerFast,
    )

    from tests.support.local_tokenizers import TEXTLESS, letters

    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters(), additional_special_tokens=["<image>"], **special)
    processor = LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}),
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE,
    )
    layers = {"num_hidden_layers": 2, "num_attention_heads": 4}
    vision = CLIPVisionConfig(hidden_size=32, intermediate_size=64, image_size=SIDE, patch_size=PATCH, **layers)
    text = LlamaConfig(vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, **layers)
    image = tokenizer.convert_tokens_to_ids("<image>")
    torch.manual_seed(1)
    model = LlavaForConditionalGeneration(LlavaConfig(vision_config=vision, text_config=text, image_token_id=image))
    model.generation_config.eos_token_id = None
    model.lm_head.weight.data[[*range(TEXTLESS), image]] = 0  # never the likeliest: an answer is to be seen as text
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
