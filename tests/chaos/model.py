"""The toy model of these tests: each token id is a character of its own, so that no lost or doubled id can hide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests import toys

#: The characters of the ids that the byte tokenizer leaves without one.
_FIRST_EXTRA = 0x4E00


def build(folder: Path) -> Path:
    toys.build_model("llama", folder)
    tokenizer().save_pretrained(folder)
    return folder


def tokenizer() -> PreTrainedTokenizerFast:
    """The byte tokenizer with a character for each further id, and text that shows the ids as they are."""
    bytes_ = toys.byte_tokenizer()
    vocab = {symbol: id_ for symbol, id_ in bytes_.get_vocab().items() if symbol not in toys.SPECIAL}
    special = [bytes_.convert_tokens_to_ids(token) for token in toys.SPECIAL]
    for id_ in set(range(toys.VOCAB)) - set(vocab.values()) - set(special):
        vocab[chr(_FIRST_EXTRA + id_)] = id_
    for token, id_ in zip(toys.SPECIAL, special, strict=True):
        vocab[token] = id_
    made = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.Fuse()
    made.add_special_tokens(list(toys.SPECIAL))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = toys.CHAT_TEMPLATE
    return fast


class Reference:
    """What the whole model says in one process, greedy."""

    def __init__(self, folder: Path) -> None:
        self._model = toys.reference_model(folder)
        self._tokenizer: Any = tokenizer()

    def text(self, prompt: str, tokens: int) -> str:
        ids = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        said = toys.reference_ids(self._model, ids, tokens)
        return str(self._tokenizer.decode(said, skip_special_tokens=True))
