"""Log probabilities of tokens, in the shapes of chats and of completions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from generation.answer import TokenScore
    from generation.prompt import Prompter

#: What OpenAI gives for a token that is as good as impossible; JSON knows no infinity.
LEAST = -9999.0


def chat_entries(scores: Iterable[TokenScore], prompter: Prompter) -> list[dict[str, Any]]:
    """Entries of `logprobs.content`."""
    return [
        {
            **_entry(score.token_id, score.logprob, prompter),
            "top_logprobs": [_entry(token_id, logprob, prompter) for token_id, logprob in score.top],
        }
        for score in scores
    ]


def _entry(token_id: int, logprob: float, prompter: Prompter) -> dict[str, Any]:
    return {
        "token": prompter.token_text(token_id),
        "logprob": max(logprob, LEAST),
        "bytes": prompter.token_bytes(token_id),
    }


class TextLogprobs:
    """The `logprobs` of one completion as it grows: parallel lists, one entry per token.

    Offsets count characters of the choice's text. Tokens that are no whole characters are written `bytes:\\xe3\\x81`,
    as OpenAI does, so that they differ from each other.
    """

    def __init__(self, prompter: Prompter) -> None:
        self._prompter = prompter
        self.lists = _empty()

    def add(self, scores: Iterable[TokenScore], *, begin: int, end: int) -> dict[str, list[Any]]:
        """The entries of tokens whose text lies between these two offsets; they are kept as well."""
        new = _empty()
        offset = begin
        for score in scores:
            new["tokens"].append(self._name(score.token_id))
            new["token_logprobs"].append(max(score.logprob, LEAST))
            # The sampled token is always among them, as in OpenAI's answers.
            top = dict([*score.top, (score.token_id, score.logprob)])
            new["top_logprobs"].append({self._name(token_id): max(value, LEAST) for token_id, value in top.items()})
            new["text_offset"].append(min(offset, end))
            offset += len(self._prompter.token_text(score.token_id))
        for name, values in new.items():
            self.lists[name].extend(values)
        return new

    def _name(self, token_id: int) -> str:
        held = self._prompter.token_bytes(token_id)
        if held is not None:
            try:
                bytes(held).decode()
            except UnicodeDecodeError:
                return "bytes:" + "".join(f"\\x{byte:02x}" for byte in held)
        return self._prompter.token_text(token_id)


def _empty() -> dict[str, list[Any]]:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
