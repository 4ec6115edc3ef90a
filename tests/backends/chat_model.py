"""A tiny model's files, made here: a byte-level BPE, a chat template in the manner of Hermes, and what ends a turn."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import jinja2.sandbox
import orjson
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}
    {{- '# Tools\\n<tools>' }}
    {%- for tool in tools %}{{ '\\n' + tool | tojson }}{% endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.content == 'Refuse me.' %}{{ raise_exception('I take no such message') }}{% endif %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if message.reasoning_content %}
            {{- '<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content or '' }}
        {%- for call in message.tool_calls or [] %}
            {%- if not loop.first or message.content %}{{ '\\n' }}{% endif %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif not (message.role == 'system' and loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKS = ("<tool_call>", "</tool_call>", "<think>", "</think>")


@cache
def tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator(["the answer is a lookup of the value system user assistant"] * 4, trainer)
    made.add_special_tokens([AddedToken(each, special=True, normalized=False) for each in SPECIAL])
    made.add_tokens([AddedToken(each, normalized=False) for each in MARKS])
    return made


def encode(text: str) -> list[int]:
    return [*tokenizer().encode(text, add_special_tokens=False).ids]


def decode(ids: Sequence[int]) -> str:
    return str(tokenizer().decode(list(ids), skip_special_tokens=False))


def token(mark: str) -> int:
    found = tokenizer().token_to_id(mark)
    assert found is not None
    return int(found)


def write(folder: Path, template: str | None = TEMPLATE, **settings: Any) -> Path:
    """The model's files.

    Args:
        settings: more of tokenizer_config.json.
    """
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer().to_str())
    config = {"eos_token": {"content": "<|im_end|>", "lstrip": False}, **settings}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_bytes(orjson.dumps(config))
    (folder / "generation_config.json").write_bytes(orjson.dumps({"eos_token_id": [token("<|endoftext|>")]}))
    return folder


def rendered(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
    """The whole conversation by Jinja alone, as the reference does it."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(TEMPLATE).render(messages=messages, tools=tools, add_generation_prompt=True)
