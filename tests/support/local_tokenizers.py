"""Tokenizers of the kinds that models have, made here: by letters, by pieces of words, by words."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SPECIAL = ["<s>", "</s>", "<unk>"]
TEXTLESS = len(SPECIAL) + 256
"""Ids below are special or, among letters, bytes, which are not always a letter by themselves."""
CORPUS = [
    "the sun on a red hill is low and we go home by sea with two",
    "the hill and the sea are red, and home is low",
] * 9


def letters(vocabulary=300):
    """Each byte is a token; what the vocabulary has beyond is never made of a text."""
    words = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    words += [f"w{number}" for number in range(vocabulary - len(words))]
    made = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def pieces():
    """As GPT-2's."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=330, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False),
    )
    return made


def unigram():
    """As T5's, with the end of a text after each, and texts cut and filled up to 16 tokens."""
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.train_from_iterator(
        CORPUS, trainers.UnigramTrainer(vocab_size=60, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)
    )
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    made.enable_truncation(16)
    made.enable_padding(length=16)
    return made


def words(count=40):
    """Each word of its own is a token, and any other the unknown one."""
    named = [*SPECIAL, *(f"w{number}" for number in range(count))]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(named)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made
