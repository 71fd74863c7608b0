"""From messages to token ids: chat template, end-of-sequence ids, length limits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2.exceptions import TemplateError

from generation import tool_form
from generation.control_tokens import ControlTokens
from generation.errors import ContextLengthExceeded, RequestRefused
from generation.text import Detokenizer, find_lone_byte
from generation.token_text import TokenText


class Prompter:
    """The tokenizer's side of a model. Threads may share it: fast tokenizers are safe to call from many."""

    def __init__(
        self, tokenizer: Any, *, context_length: int, stop_ids: Iterable[int], default_max_tokens: int
    ) -> None:
        self._tokenizer = tokenizer
        self.context_length = context_length
        self.stop_ids = frozenset(stop_ids)
        self._default_max_tokens = default_max_tokens
        self._template = _template_text(tokenizer)
        self._control_tokens = ControlTokens(tokenizer, self._template)
        self._token_text = TokenText(tokenizer)
        self._beginning = self._find_beginning()
        self._hidden = self._find_hidden()
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

    # -- prompts

    @cached_property
    def supports_tools(self) -> bool:
        """Whether the template writes tools, and their calls in the form that `tool_form` describes."""
        return bool(self._template) and tool_form.is_known(self._render)

    def ids(self, messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()) -> list[int]:
        """The prompt's token ids, the assistant's turn opened; a BOS only where the template writes one.

        Text of the messages that spells control tokens stays text. Raises RequestRefused with the template's own
        words, when there is no template, when it knows nothing of `tools`, or when it makes no token.
        """
        if not self._template:
            raise RequestRefused(
                "This model has no chat template, so it cannot take messages. Use a chat ('instruct') model, or "
                "/v1/completions.",
                param="messages",
            )
        if tools and not self.supports_tools:
            raise RequestRefused("This model's chat template does not support tools.", param="tools")
        messages = [_without_none(message) for message in messages]
        described = [_without_none_in_function(tool) for tool in tools]
        if self._control_tokens.are_spelled_in(messages, described):
            marked = self._control_tokens.mark_messages(messages), self._control_tokens.mark_tools(described)
            found = self._control_tokens.encode(self._refusing(*marked))
        else:
            found = self.encode(self._refusing(messages, described))
        if not found:
            raise RequestRefused("The model's chat template makes no prompt of these messages.", param="messages")
        return found

    def text_ids(self, text: str) -> list[int]:
        """Ids of a text to go on with, begun as the tokenizer begins a text (one BOS, if it does that).

        Control tokens that the text spells are tokens: whoever writes a raw prompt writes all of it. One that has the
        beginning already gets no second one. Nothing is put behind it, whatever the tokenizer does.
        """
        plain = self.encode(text)
        begun = plain[: len(self._beginning)] == self._beginning
        return plain if begun else [*self._beginning, *plain]

    def _find_beginning(self) -> list[int]:
        probe = self.encode("a")
        whole = [int(token_id) for token_id in self._tokenizer("a")["input_ids"]]
        for at in range(len(whole) - len(probe) + 1):
            if whole[at : at + len(probe)] == probe:
                return whole[:at]
        return []

    def _render(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                messages, tools=tools or None, add_generation_prompt=True, tokenize=False
            )
        )

    def _refusing(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
        """What the template writes; whatever it raises is about these messages, since it is code of the model's."""
        try:
            return self._render(messages, tools)
        except Exception as error:
            # Not logged: it may hold words of the messages.
            kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
            raise RequestRefused(
                f"The model's chat template refuses these messages: {kind}{error!s:.500}", param="messages"
            ) from None

    def budget(self, prompt_tokens: int, max_tokens: int | None, *, param: str = "messages") -> int:
        """How many tokens may be generated. Raises ContextLengthExceeded when prompt and answer do not fit.

        `param` names the request's field that holds the prompt. Without max_tokens it is what still fits, at most the
        server's default.
        """
        left = self.context_length - prompt_tokens
        if left < 1 or (max_tokens is not None and max_tokens > left):
            asked = "" if max_tokens is None else f" and {max_tokens} tokens of answer"
            # Begins with OpenAI's words: litellm looks for them, not for the code.
            raise ContextLengthExceeded(
                f"This model's maximum context length is {self.context_length} tokens; {prompt_tokens} tokens of "
                f"prompt{asked} do not fit. Shorten the prompt or ask for less.",
                param=param if left < 1 else "max_tokens",
            )
        return min(self._default_max_tokens, left) if max_tokens is None else max_tokens

    # -- text

    def decode(self, ids: list[int]) -> str:
        """Text of ids, special tokens left out, but for the marks of tool calls."""
        if self._hidden is not None:
            ids = [token_id for token_id in ids if token_id not in self._hidden]
        skip = self._hidden is None
        return str(self._tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False))

    def token_text(self, token_id: int) -> str:
        """One token's text for log probabilities; U+FFFD where it is no whole character."""
        return self._token_text.text(token_id)

    def token_bytes(self, token_id: int) -> list[int] | None:
        """The bytes a token adds to the text, or None where the vocabulary does not say them."""
        return self._token_text.bytes(token_id)

    def _find_hidden(self) -> frozenset[int] | None:
        """The ids without text when tool calls are marked by special tokens; None when the tokenizer knows itself.

        Qwen's tokenizers do not make the marks special; others of the same form do (vllm-project/vllm#25281).
        """
        special = {int(i): token.content for i, token in self._tokenizer.added_tokens_decoder.items() if token.special}
        marks = {tool_form.CALL_START, tool_form.CALL_END}
        if not marks & set(special.values()) or not self.supports_tools:
            return None
        return frozenset(token_id for token_id, content in special.items() if content not in marks)

    def detokenizer(self) -> Detokenizer:
        """The text of one answer as it grows."""
        return Detokenizer(self.decode, lone_byte=self._lone_byte)

    def encode(self, text: str) -> list[int]:
        """Ids of a text as it is, nothing added."""
        # verbose: the tokenizer's own opinion of what is too long would go to the log.
        encoded = self._tokenizer(text, add_special_tokens=False, verbose=False)
        return [int(token_id) for token_id in encoded["input_ids"]]


def _template_text(tokenizer: Any) -> str:
    """The chat template, or all of them when there is one for each purpose; empty when there is none."""
    template = getattr(tokenizer, "chat_template", None)
    return "\n".join(map(str, template.values())) if isinstance(template, dict) else str(template or "")


def _without_none(message: dict[str, Any]) -> dict[str, Any]:
    """Templates write null content as the word None, or fail on a message that has none (case C04)."""
    return {"content": "", **{key: value for key, value in message.items() if value is not None}}


def _without_none_in_function(tool: dict[str, Any]) -> dict[str, Any]:
    """Null means absent. Not in the schema of the parameters, where it is a value like any other."""
    function = tool.get("function")
    if not isinstance(function, dict):
        return tool
    return {**tool, "function": {key: value for key, value in function.items() if value is not None}}


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
