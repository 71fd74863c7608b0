"""Small vocabularies of the kinds that models have, and random sequences of their tokens."""

from __future__ import annotations

from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from generation.text import MOST_HELD_TOKENS, REPLACEMENT

FAMILY = "\U0001f469\u200d\U0001f469\u200d\U0001f467"
SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")


class Vocabulary:
    """A tokenizer with its ids by name, and how it decodes."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.ids = tokenizer.get_vocab()
        self.tokenizer = tokenizer
        self.decoded_tokens = 0

    def decode(self, ids: list[int]) -> str:
        self.decoded_tokens += len(ids)
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def byte_ids(self, data: bytes) -> list[int]:
        raise NotImplementedError


class ByteLevel(Vocabulary):
    """Every byte is one token; `merged` adds tokens of several bytes that cut characters anywhere."""

    MERGED = (
        " a",
        "\u65e5",
        "ab",
        b"\xe6\x97",
        b"\x97\xa5",
        b"\xa5\xe6",
        b"a\xf0",
        b"\x9f\x91",
        b"\x80\x80",
        b"\xff\xff",
    )

    def __init__(self, *, merged: bool = False, special: tuple[str, ...] = ()) -> None:
        self.symbols = _byte_symbols()
        names = [self.symbols[byte] for byte in range(256)]
        if merged:
            names += [
                "".join(self.symbols[byte] for byte in (text if isinstance(text, bytes) else text.encode()))
                for text in self.MERGED
            ]
        model = models.BPE(vocab={name: index for index, name in enumerate(sorted(names))}, merges=[])
        tokenizer = Tokenizer(model)
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([AddedToken(name, special=True) for name in (*SPECIAL, *special)])
        super().__init__(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>"))

    def byte_ids(self, data: bytes) -> list[int]:
        return [self.ids[self.symbols[byte]] for byte in data]


class SentencePiece(Vocabulary):
    """Words that start with a marked space, single letters, and byte fallback for everything else."""

    WORDS = (
        "\u2581Hello",
        "\u2581world",
        "lo",
        "\u2581",
        "\u2581\u2581",
        "\u2581two",
        "spaces",
        "indented",
        ".",
        "a",
        "\u65e5",
        REPLACEMENT,
    )

    def __init__(self, decoder: decoders.Decoder) -> None:
        names = [
            *SPECIAL[:2],
            "<unk>",
            *(f"<0x{byte:02X}>" for byte in range(256)),
            *self.WORDS,
            *SPECIAL[2:],
        ]
        scores = [(name, -float(index)) for index, name in enumerate(names)]
        tokenizer = Tokenizer(models.Unigram(scores, unk_id=2, byte_fallback=True))
        tokenizer.decoder = decoder
        tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
        super().__init__(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>"))

    def byte_ids(self, data: bytes) -> list[int]:
        return [self.ids[f"<0x{byte:02X}>"] for byte in data]

    def word_ids(self, *names: str) -> list[int]:
        return [self.ids[name] for name in names]


def _byte_symbols() -> dict[int, str]:
    """GPT-2's table from bytes to visible characters."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(256 + n) for n, byte in enumerate(hidden)}


def metaspace() -> decoders.Decoder:
    return decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always"), decoders.Fuse()])


def llama() -> decoders.Decoder:
    return decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )


BYTE_LEVEL = ByteLevel()
MERGED = ByteLevel(merged=True)
METASPACE = SentencePiece(metaspace())
LLAMA = SentencePiece(llama())
#: Half of the vocabulary leaves no text, as with models that keep hundreds of tokens in reserve.
RESERVED = ByteLevel(merged=True, special=tuple(f"<|reserved_{number}|>" for number in range(256)))


def token_ids(vocabulary: Vocabulary) -> st.SearchStrategy[list[int]]:
    """Random tokens, text in bytes, broken bytes and special tokens, in random order."""
    anything = st.integers(0, max(vocabulary.ids.values()))
    words = [vocabulary.ids[name] for name in getattr(vocabulary, "WORDS", ())] or [vocabulary.ids["a"]]
    special = [vocabulary.ids[name] for name in SPECIAL]
    part = st.one_of(
        st.lists(anything, min_size=1, max_size=6),
        st.sampled_from(words).map(lambda token_id: [token_id]),
        st.sampled_from(special).map(lambda token_id: [token_id]),
        st.text(alphabet="a \n\u00e9\u65e5\u672c" + FAMILY + REPLACEMENT, max_size=4).map(
            lambda text: vocabulary.byte_ids(text.encode())
        ),
        st.binary(max_size=4).map(vocabulary.byte_ids),
        st.sampled_from([b"\xff", b"\xe6\x97", b"\xf0\x9f\x91", b"\xef\xbf\xbd", b"\n"]).map(vocabulary.byte_ids),
    )
    return st.lists(part, max_size=16).map(lambda parts: [i for part in parts for i in part][: MOST_HELD_TOKENS - 1])
