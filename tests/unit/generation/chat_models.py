"""Tokenizers with chat templates of the kinds that models have, small enough to build on the spot."""

from __future__ import annotations

import string
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tests.toys import byte_tokenizer

MISTRAL_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}[INST] {{ message['content'] | trim }} [/INST]"
    "{% elif message['role'] == 'assistant' %} {{ message['content'] | trim }}{{ eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)

#: Qwen 2.5's, without its default system message.
QWEN_TEMPLATE = r"""
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- endif %}
    {{- "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n" }}
{%- elif messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- message.content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""  # noqa: E501

#: Between the same marks, but not as JSON: how Qwen 3 Coder writes calls.
XML_CALLS_TEMPLATE = QWEN_TEMPLATE.replace(
    r"""{{- '\n<tool_call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}""",
    r"""{{- '\n<tool_call>\n<function=' + tool_call.name + '>\n</function>\n</tool_call>' }}""",
)
QWEN_TEXT_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")


def qwen(template: str = QWEN_TEMPLATE, *, marks_are_special: bool = False) -> PreTrainedTokenizerFast:
    """Byte-level; the marks of tool calls and thinking are tokens, but not special ones."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken(name, special=marks_are_special) for name in QWEN_TEXT_TOKENS])
    tokenizer.chat_template = template
    return tokenizer


def sentence_piece(*, legacy: bool, adds_eos: bool = False) -> PreTrainedTokenizerFast:
    """As Llama 2 and Mistral have it: word-start marks, byte fallback, BOS before a text.

    `legacy` puts a mark before every piece of text, its successor only before the first.
    """
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *string.ascii_letters]
    names += [*"[]/<>|!?.", "\u2581h", "hi", "\u2581hi"]
    merges = [("\u2581", "h"), ("h", "i"), ("\u2581", "hi")]
    vocab = {name: index for index, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if legacy:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names[:3]])
    return _with_bos(tokenizer, adds_eos=adds_eos)


def unigram(*, special: str = "<s>") -> PreTrainedTokenizerFast:
    """One whose model makes special tokens even of plain text, since they are pieces like any other."""
    names = ["<unk>", "<s>", "</s>", "\u2581", *string.ascii_letters, *"[]/<>|!?."]
    tokenizer = Tokenizer(models.Unigram([(name, -float(index > 2)) for index, name in enumerate(names)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in (*names[:3], special)])
    return _with_bos(tokenizer, adds_eos=False)


def _with_bos(tokenizer: Tokenizer, *, adds_eos: bool) -> PreTrainedTokenizerFast:
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>" if adds_eos else "<s> $A", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    fast: Any = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    fast.chat_template = MISTRAL_TEMPLATE
    return fast
