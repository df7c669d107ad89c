"""Prompts that chat templates make of messages, as transformers renders them."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from collage.errors import CollageError, InputError
from collage.serve.http.chat_template import ChatTemplate, open_chat_template

pytest.importorskip("jinja2", reason="jinja2 is missing: pip install 'collage-compiler[serve]'")

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "  Hi <b> & é "},
    {"role": "assistant", "content": "Ho"},
    {"role": "user", "content": "Bye"},
]


LLAMA3 = """
{{- bos_token }}
{%- if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\nToday: ' + date_string + '\n' + system + '<|eot_id|>' }}
{%- if tools is not none %}{{ raise_exception('tools') }}{% endif %}
{%- if documents is not none %}{{ raise_exception('documents') }}{% endif %}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}
"""

QWEN = """
{%- if tools %}{{ tools | map(attribute='name') | join }}{% endif %}
{%- if messages[0].role != 'system' %}{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' and not message.tool_calls %}
        {{- '<|im_start|>assistant\n' }}
        {%- generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}
    {%- elif message.role in ('user', 'system') %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- else %}{% continue %}
    {%- endif %}
    {%- if loop.index == 4 %}{% break %}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
"""


def prompt(source: str, messages: list[dict[str, str]], **tokens: Any) -> str:
    return ChatTemplate(source, tokens).prompt(messages)


def test_in_the_manner_of_llama_3() -> None:
    """With the day, and without tools and documents, which are there and none."""
    days = {f"{datetime.now():%d %b %Y}"}
    found = prompt(LLAMA3, TALK, bos_token="<|begin|>")
    days.add(f"{datetime.now():%d %b %Y}")
    turns = [("user", "Hi <b> & é"), ("assistant", "Ho"), ("user", "Bye")]
    said = "".join(f"<|start_header_id|>{role}<|end_header_id|>\n\n{text}<|eot_id|>" for role, text in turns)
    head = "<|begin|><|start_header_id|>system<|end_header_id|>\n\nToday: {}\nBe brief.<|eot_id|>"
    tail = "<|start_header_id|>assistant<|end_header_id|>\n\n"
    assert found in {head.format(day) + said + tail for day in days}


def test_in_the_manner_of_qwen() -> None:
    """With the block that marks answers, and loops that are left and gone on with."""
    turns = [f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>\n" for each in [*TALK, TALK[1], TALK[2]]]
    start = "<|im_start|>assistant\n"
    assert prompt(QWEN, [*TALK, TALK[1], TALK[2]]) == "".join(turns[:4]) + start
    odd = [TALK[1], {"role": "developer", "content": "x"}, TALK[3]]
    assert prompt(QWEN, odd) == "<|im_start|>system\nYou help.<|im_end|>\n" + turns[1] + turns[3] + start


def test_json_is_no_html() -> None:
    assert prompt("{{ messages[1].content | tojson }}", TALK) == '"  Hi <b> & é "'
    assert prompt("{{ {'b': 1, 'a': [2]} | tojson(indent=1, sort_keys=true) }}", TALK) == json.dumps(
        {"a": [2], "b": 1}, indent=1
    )


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ messages[9].content + 'x' }}",
    ],
)
def test_what_a_template_may_not_do_refuses_the_messages(source: str) -> None:
    with pytest.raises(InputError, match="the chat template refuses these messages: "):
        prompt(source, TALK)


ALL = (
    "{{ bos_token }}{{ eos_token }}{{ unk_token }}{{ sep_token }}{{ pad_token }}{{ cls_token }}{{ mask_token }}"
    "{{ additional_special_tokens | join(',') }}{{ image_token }}"
)


def write(folder: Path, **files: Any) -> Path:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def opened(folder: Path) -> ChatTemplate:
    found = open_chat_template(folder)
    assert found is not None
    return found


def test_all_special_tokens_are_there(tmp_path: Path) -> None:
    write(
        tmp_path,
        special_tokens_map={
            "bos_token": {"content": "<s>", "lstrip": False},
            "sep_token": "<sep>",
            "cls_token": "<cls>",
            "mask_token": "<mask>",
            "pad_token": "<map>",
            "eos_token": "</s>",
            "additional_special_tokens": ["<old>"],
        },
        tokenizer_config={
            "chat_template": ALL,
            "bos_token": None,
            "unk_token": {"content": "<unk>"},
            "pad_token": "<pad>",
            "additional_special_tokens": ["<a>", {"content": "<b>"}, None],
            "extra_special_tokens": {"image_token": "<image>"},
        },
    )
    assert opened(tmp_path).prompt(TALK) == "<s></s><unk><sep><pad><cls><mask><a>,<b><image>"


def test_tokens_cannot_take_the_place_of_messages(tmp_path: Path) -> None:
    source = "{{ messages[0].role }}"
    write(tmp_path, tokenizer_config={"chat_template": source, "extra_special_tokens": {"messages": "x"}})
    assert opened(tmp_path).prompt(TALK) == "system"


def test_a_file_of_its_own_goes_before_named_templates(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "{{ eos_token }}"}]
    write(tmp_path, tokenizer_config={"chat_template": named, "eos_token": "</s>"})
    assert opened(tmp_path).prompt(TALK) == "</s>"
    (tmp_path / "chat_template.jinja").write_text("é{{ eos_token }}", "utf-8")
    assert opened(tmp_path).prompt(TALK) == "é</s>"
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CollageError, match=r"cannot read .*chat_template\.jinja"):
        open_chat_template(tmp_path)
