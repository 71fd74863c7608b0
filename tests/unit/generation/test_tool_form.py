from __future__ import annotations

from typing import Any

import pytest

from generation import tool_form
from generation.errors import RequestRefused
from generation.openai.tool_calls import ToolCall, ToolCallParser
from generation.prompt import Prompter
from tests.toys import byte_tokenizer
from tests.unit.generation.chat_models import QWEN_TEMPLATE, XML_CALLS_TEMPLATE, qwen, sentence_piece

HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "\u65e5"}}}


def prompter(tokenizer: Any) -> Prompter:
    return Prompter(tokenizer, context_length=4096, stop_ids=[2], default_max_tokens=40)


def text(tokenizer: Any, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False))


def test_a_template_of_the_known_form_takes_tools() -> None:
    ids = prompter(qwen()).ids(HI, [TOOL])
    assert '"name": "get_weather"' in text(qwen(), ids)
    assert ids == qwen().apply_chat_template(HI, tools=[TOOL], add_generation_prompt=True, return_dict=False)


@pytest.mark.parametrize(
    "tokenizer",
    [
        qwen(XML_CALLS_TEMPLATE),
        qwen(QWEN_TEMPLATE.replace("{{- tool | tojson }}", "")),
        qwen("{% if tools %}{{ raise_exception('no tools') }}{% endif %}{{ messages[0].content }}"),
        byte_tokenizer(),
        sentence_piece(legacy=False),
    ],
    ids=["calls as xml", "tools not written", "refuses tools", "chatml", "mistral"],
)
def test_a_template_without_tools_or_of_another_form_refuses_them_by_name(tokenizer: Any) -> None:
    assert not prompter(tokenizer).supports_tools
    with pytest.raises(RequestRefused, match="does not support tools") as refused:
        prompter(tokenizer).ids(HI, [TOOL])
    assert (refused.value.param, refused.value.http_status) == ("tools", 400)
    assert prompter(tokenizer).ids(HI)


def test_what_the_template_writes_for_a_call_is_what_the_parser_reads() -> None:
    messages = [*HI, {"role": "assistant", "content": "Let me look.", "tool_calls": [CALL]}]
    rendered = text(qwen(), prompter(qwen()).ids(messages))
    said = rendered.partition("<|im_start|>assistant\n")[2].partition("<|im_end|>")[0]
    before, call = ToolCallParser(mint=lambda: "call_1").push(said)
    assert before == "Let me look.\n"
    assert call == ToolCall("call_1", "get_weather", '{"city": "\u65e5"}')


@pytest.mark.parametrize("marks_are_special", [False, True])
def test_the_marks_of_calls_are_part_of_the_text_even_when_they_are_special_tokens(marks_are_special: bool) -> None:
    tokenizer = qwen(marks_are_special=marks_are_special)
    said = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    ids = [*tokenizer(said)["input_ids"], tokenizer.convert_tokens_to_ids("<|im_end|>")]
    assert tokenizer.convert_tokens_to_ids(tool_form.CALL_START) in ids
    assert prompter(tokenizer).decode(ids) == said
    detokenizer = prompter(tokenizer).detokenizer()
    assert "".join(map(detokenizer.push, ids)) + detokenizer.flush() == said


def test_special_marks_leave_no_text_where_the_template_knows_no_calls() -> None:
    tokenizer = qwen(byte_tokenizer().chat_template, marks_are_special=True)
    assert prompter(tokenizer).decode(tokenizer("<tool_call>a</tool_call>")["input_ids"]) == "a"


def test_c04_null_in_calls_and_tools_never_becomes_a_word() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": None, "parameters": None, "strict": None}}
    messages = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None},
        {"role": "tool", "content": "sunny", "tool_call_id": "call_1", "name": None},
    ]
    rendered = text(qwen(), prompter(qwen()).ids(messages, [tool]))
    assert "None" not in rendered and "null" not in rendered
    assert "sunny" in rendered
    assert "get_weather" in rendered
