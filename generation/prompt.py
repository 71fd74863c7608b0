"""From messages to token ids: chat template, end-of-sequence ids, length limits."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jinja2.exceptions import TemplateError

from generation.errors import ContextLengthExceeded, RequestRefused
from generation.text import Detokenizer, find_lone_byte

logger = logging.getLogger(__name__)


class Prompter:
    """The tokenizer's side of a model. Threads may share it: fast tokenizers are safe to call from many."""

    def __init__(
        self, tokenizer: Any, *, context_length: int, stop_ids: Iterable[int], default_max_tokens: int
    ) -> None:
        self._tokenizer = tokenizer
        self.context_length = context_length
        self.stop_ids = frozenset(stop_ids)
        self._default_max_tokens = default_max_tokens
        self._lone_byte = find_lone_byte(self.decode)

    @classmethod
    def load(cls, folder: Path, *, context_length: int, default_max_tokens: int) -> Prompter:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder)
        return cls(
            tokenizer,
            context_length=context_length,
            stop_ids=stop_ids(folder, tokenizer.eos_token_id),
            default_max_tokens=default_max_tokens,
        )

    def ids(self, messages: list[dict[str, Any]]) -> list[int]:
        """The prompt's token ids, the assistant's turn opened. Raises RequestRefused with the template's own words."""
        if not getattr(self._tokenizer, "chat_template", None):
            raise RequestRefused(
                "This model has no chat template, so it cannot take messages. Use a chat ('instruct') model.",
                param="messages",
            )
        try:
            encoded = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
        except (TemplateError, ValueError, TypeError) as error:
            raise RequestRefused(
                f"The model's chat template refuses these messages: {error}", param="messages"
            ) from None
        return [int(token_id) for token_id in encoded["input_ids"]]

    def budget(self, prompt_tokens: int, max_tokens: int | None) -> int:
        """How many tokens may be generated. Raises ContextLengthExceeded when prompt and answer do not fit.

        Without max_tokens it is what still fits, at most the server's default.
        """
        left = self.context_length - prompt_tokens
        if left < 1 or (max_tokens is not None and max_tokens > left):
            asked = "" if max_tokens is None else f" and {max_tokens} tokens of answer"
            raise ContextLengthExceeded(
                f"This model's context is {self.context_length} tokens; {prompt_tokens} tokens of prompt{asked} do not "
                "fit. Shorten the messages or ask for less.",
                param="messages" if left < 1 else "max_tokens",
            )
        return min(self._default_max_tokens, left) if max_tokens is None else max_tokens

    def decode(self, ids: list[int]) -> str:
        """Text of ids, special tokens left out."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def detokenizer(self) -> Detokenizer:
        """The text of one answer as it grows."""
        return Detokenizer(self.decode, lone_byte=self._lone_byte)

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, nothing added: for the text of a tail that sends no token ids."""
        return [int(token_id) for token_id in self._tokenizer(text, add_special_tokens=False)["input_ids"]]


def stop_ids(folder: Path, tokenizer_eos: int | None) -> set[int]:
    """Every id that ends a text: the union of tokenizer, generation_config.json and config.json (case B07)."""
    found: set[int] = set() if tokenizer_eos is None else {int(tokenizer_eos)}
    for name in ("generation_config.json", "config.json"):
        try:
            config = json.loads((folder / name).read_text())
        except FileNotFoundError:
            continue
        # A wrapped (multimodal) model says it of its text model.
        for part in (config, config.get("text_config") or {}):
            value = part.get("eos_token_id")
            found.update(item for item in (value if isinstance(value, list) else [value]) if isinstance(item, int))
    return found
