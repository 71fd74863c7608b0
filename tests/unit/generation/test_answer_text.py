"""The text of whole answers, with a tail that computes as ever and answers the tokens of a script."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from generation import answer as answers
from generation.answer import ChatRequest, Finished, TextDelta
from generation.directory import NodeDirectory
from generation.errors import ContextLengthExceeded, RequestRefused
from generation.job import LoopSettings
from generation.prompt import Prompter
from generation.runtime import HeadRuntime
from generation.text import REPLACEMENT
from nodes.client import LocalNodeClient, StepAnswer
from nodes.framing import Payload
from nodes.runtime import NodeRuntime
from nodes.shard import Embedder
from nodes.wire import StepHeaders
from tests.meshes import FINGERPRINT, ranges, running_nodes
from tests.processes import wait_until
from tests.toys import EOS, byte_tokenizer
from tests.unit.generation.vocabularies import BYTE_LEVEL, FAMILY

pytestmark = pytest.mark.django_db(transaction=True)

CONTEXT = 512
START, END = (byte_tokenizer().convert_tokens_to_ids(name) for name in ("<|im_start|>", "<|im_end|>"))


class ScriptTail(LocalNodeClient):
    """The last node; its n-th new token is the script's, whatever the model says."""

    def __init__(self, runtime: NodeRuntime, url: str) -> None:
        super().__init__(runtime, url)
        self.script: list[int] = []
        self.decodes = self.prefills = 0

    def forward(
        self, headers: StepHeaders, payload: Payload, *, timeout: float, patience: float | None = None
    ) -> StepAnswer:
        self.prefills += headers.cache == "prefill"
        self.decodes += headers.past_len is not None and payload.hidden.shape[1] == 1  # not a piece of a long prompt
        answer = super().forward(headers, payload, timeout=timeout)
        return replace(answer, token_id=self.script[self.decodes]) if answer.has_token_id else answer


class Talk:
    """A head over two nodes, and the text of the answers that the script makes."""

    def __init__(self, folder: Any, nodes: list[NodeRuntime]) -> None:
        self.nodes = nodes
        self.tail = ScriptTail(nodes[1], "local:1")
        self.tokenizer = byte_tokenizer()
        self.stop_ids = [EOS]
        self._folder = folder

    def start(self, script: str | bytes | list[int], *, streamed: bool = False, **options: Any) -> answers.Answer:
        self.tail.script = script if isinstance(script, list) else byte_ids(script)
        self.tail.decodes = self.tail.prefills = 0
        head = HeadRuntime(
            "toy",
            Prompter(self.tokenizer, context_length=CONTEXT, stop_ids=self.stop_ids, default_max_tokens=400),
            Embedder.load(self._folder),
            LoopSettings(FINGERPRINT, "float32", 4, 320, CONTEXT),
            NodeDirectory([LocalNodeClient(self.nodes[0], "local:0"), self.tail]),
        )
        messages = [{"role": "user", "content": "hello"}]
        asked = ChatRequest(**{"model": "toy", "messages": messages, "temperature": 0.0, **options})
        return answers.start(head, asked, api_key=None, streamed=streamed)

    def say(self, script: str | bytes | list[int], **options: Any) -> tuple[list[str], Finished]:
        answer = self.start(script, **options)
        *deltas, end = answer.events()
        answer.join(10)
        assert isinstance(end, Finished)
        return [delta.text for delta in deltas if isinstance(delta, TextDelta)], end

    @property
    def steps(self) -> int:
        return self.tail.prefills + self.tail.decodes


def byte_ids(text: str | bytes) -> list[int]:
    vocabulary = byte_tokenizer().get_vocab()
    return [vocabulary[BYTE_LEVEL.symbols[byte]] for byte in (text.encode() if isinstance(text, str) else text)]


@pytest.fixture(scope="module")
def nodes(toy_folder: Any) -> Iterator[list[NodeRuntime]]:
    with running_nodes(toy_folder("llama"), ranges(0, 2, 4)) as running:
        yield running


@pytest.fixture
def talk(toy_folder: Any, nodes: list[NodeRuntime]) -> Talk:
    return Talk(toy_folder("llama"), nodes)


@pytest.mark.parametrize("streamed", [True, False])
def test_b05_the_text_ends_before_a_stop_string_over_many_tokens(talk: Talk, streamed: bool) -> None:
    pieces, end = talk.say("abc\nUser: hi", stop=("\nUser:",), streamed=streamed)
    assert pieces == ["a", "b", "c"]
    assert end.reason == "stop"
    assert end.completion_tokens == len("abc\nUser:")
    assert (talk.tail.prefills, talk.tail.decodes) == (1, len("abc\nUser:") - 1), "no step after the match"
    wait_until(lambda: not any(node.sessions()["sessions"] for node in talk.nodes), 5)


@pytest.mark.parametrize(
    ("script", "stop", "text"),
    [
        ("aab", ("ab",), "a"),
        ("abc\nUseful, and more", ("\nUser:",), "abc\nUseful, and more"),
        ("abc\nUser", ("\nUser:",), "abc\nUser"),
        ("abcabcd.", ("abcd",), "abc"),
        ("one two", ("two", "ne t"), "o"),
        ("stop", ("stop",), ""),
        ("\u65e5\u672c\u8a9e", ("\u672c",), "\u65e5"),
        (f"ok {FAMILY} no", (" n",), f"ok {FAMILY}"),
        ("nothing", (), "nothing"),
    ],
)
def test_b05_streamed_and_unstreamed_are_the_same_text(
    talk: Talk, script: str, stop: tuple[str, ...], text: str
) -> None:
    for streamed in (True, False):
        pieces, end = talk.say([*byte_ids(script), EOS], stop=stop, streamed=streamed)
        assert "".join(pieces) == text
        assert end.reason == "stop"


def test_b05_held_back_text_comes_with_the_end_that_the_limit_makes(talk: Talk) -> None:
    pieces, end = talk.say("abc\nUser: hi", stop=("\nUser:",), max_tokens=6)
    assert ("".join(pieces), end.reason, end.completion_tokens) == ("abc\nUs", "length", 6)


def test_b05_a_match_in_the_last_token_that_fits_is_a_stop(talk: Talk) -> None:
    pieces, end = talk.say("abcd", stop=("c",), max_tokens=3)
    assert ("".join(pieces), end.reason) == ("ab", "stop")


def test_b05_a_stop_string_in_text_that_only_the_end_makes_final_is_found(talk: Talk) -> None:
    # An unfinished character is text only once nothing follows it.
    pieces, end = talk.say(b"ab\xe6", stop=(REPLACEMENT,), max_tokens=3)
    assert ("".join(pieces), end.reason) == ("ab", "stop")


def test_b01_no_piece_holds_part_of_a_character_and_tokens_are_counted(talk: Talk) -> None:
    text = f"ok {FAMILY} \u65e5\u672c\u8a9e \u00e9."
    pieces, end = talk.say([*byte_ids(text), EOS])
    assert pieces == list(text)
    assert end.completion_tokens == len(text.encode())


def test_b03_invalid_bytes_flow_before_the_end(talk: Talk) -> None:
    answer = talk.start([*byte_ids(b"\xff" * 40 + b"hello"), EOS])
    events = answer.events()
    assert next(events) == TextDelta(REPLACEMENT)
    pieces = [REPLACEMENT, *(event.text for event in events if isinstance(event, TextDelta))]
    answer.join(10)
    assert "".join(pieces) == REPLACEMENT * 40 + "hello"
    assert len(pieces) > 40, "one after the other"


def test_b07_any_end_of_text_ends_it_and_special_tokens_are_no_text(talk: Talk) -> None:
    talk.stop_ids = [EOS, 7, 5]
    for end_id in (7, 5, EOS):
        for streamed in (True, False):
            pieces, end = talk.say([*byte_ids("a"), START, *byte_ids("b"), end_id], streamed=streamed)
            assert ("".join(pieces), end.reason, end.completion_tokens) == ("ab", "stop", 3)
    talk.stop_ids = [7]
    pieces, end = talk.say([*byte_ids("a"), END, *byte_ids("b"), 7])
    assert "".join(pieces) == "ab"


def test_c06_and_b08_what_is_refused_reaches_no_node(talk: Talk) -> None:
    long = [{"role": "user", "content": "x" * CONTEXT}]
    for options in ({"messages": long}, {"max_tokens": CONTEXT}):
        with pytest.raises(ContextLengthExceeded):
            talk.start("hi", **options)
        assert talk.steps == 0
    for template in (None, "{{ raise_exception('no system role') }}"):
        talk.tokenizer.chat_template = template
        with pytest.raises(RequestRefused):
            talk.start("hi")
        assert talk.steps == 0
    talk.tokenizer = byte_tokenizer()
    assert "".join(talk.say([*byte_ids("hi"), EOS])[0]) == "hi", "the next request is served"


def test_c06_without_max_tokens_it_is_what_still_fits(talk: Talk) -> None:
    prompt = Prompter(byte_tokenizer(), context_length=CONTEXT, stop_ids=[EOS], default_max_tokens=400)
    filler = CONTEXT - 4 - len(prompt.ids([{"role": "user", "content": ""}]))
    messages = [{"role": "user", "content": "x" * filler}]
    pieces, end = talk.say("abcdefgh", messages=messages)
    assert ("".join(pieces), end.reason, end.prompt_tokens) == ("abcd", "length", CONTEXT - 4)
