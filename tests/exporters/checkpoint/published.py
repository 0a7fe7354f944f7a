"""What published models say about themselves, as far as tests need it: turns in their templates, and Phi-3's marks.

The templates are written anew, reduced to a conversation, and lay out turns as the models' own do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Case:
    """A template, the control tokens of its vocabulary, and those that end an assistant's turn."""

    template: str
    tokens: tuple[str, ...]
    ends: set[str]
    special: Mapping[str, str] = field(default_factory=dict)


_LOOP = "{%% for m in messages %%}%s{%% endfor %%}{%% if add_generation_prompt %%}%s{%% endif %%}"
_GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system prompt') }}{% endif %}"
    "{% for m in messages %}{% set role = 'model' if m.role == 'assistant' else m.role %}"
    "{{ '<start_of_turn>' + role + '\n' + m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
)
_LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content + ' [/INST]' }}"
    "{% elif m.role == 'assistant' %}{{ ' ' + m.content + ' ' + eos_token }}{% endif %}{% endfor %}"
)
PHI3 = _LOOP % (
    "{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}",
    "{{ '<|assistant|>\n' }}",
)
TEMPLATES = {
    "chatml": Case(
        _LOOP
        % ("{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}", "{{ '<|im_start|>assistant\n' }}"),
        ("<|im_start|>", "<|im_end|>"),
        {"<|im_end|>"},
    ),
    "llama-3": Case(
        "{{ bos_token }}"
        + _LOOP
        % (
            "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}",
            "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}",
        ),
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"),
        {"<|eot_id|>"},
        {"bos_token": "<|begin_of_text|>"},
    ),
    "gemma": Case(_GEMMA, ("<bos>", "<start_of_turn>", "<end_of_turn>"), {"<end_of_turn>"}, {"bos_token": "<bos>"}),
    "llama-2": Case(_LLAMA2, ("<s>", "</s>"), {"</s>"}, {"bos_token": "<s>", "eos_token": "</s>"}),
    "phi-3": Case(PHI3, ("<|user|>", "<|system|>", "<|assistant|>", "<|end|>"), {"<|end|>"}),
    "phi-4": Case(
        _LOOP
        % (
            "{{ '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' }}",
            "{{ '<|im_start|>assistant<|im_sep|>' }}",
        ),
        ("<|im_start|>", "<|im_sep|>", "<|im_end|>"),
        {"<|im_end|>"},
    ),
    "zephyr, whose roles are no tokens": Case(
        _LOOP % ("{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}", "{{ '<|assistant|>\n' }}"),
        ("<s>", "</s>"),
        {"</s>"},
        {"eos_token": "</s>"},
    ),
    "only between turns": Case(
        "{% for m in messages %}{{ m.content }}{% if not loop.last %}<|sep|>{% endif %}{% endfor %}",
        ("<|sep|>",),
        {"<|sep|>"},
    ),
}

PHI3_MARKS = (
    "<|endoftext|>", "<|assistant|>", "<|placeholder1|>", "<|placeholder2|>", "<|placeholder3|>", "<|placeholder4|>",
    "<|system|>", "<|end|>", "<|placeholder5|>", "<|placeholder6|>", "<|user|>",
)  # fmt: skip


def phi3() -> dict[str, Any]:
    """The metadata of a GGUF file of Phi-3-mini as early converters wrote it: of its ends it knows the text's alone.

    Of the words only "Hello" is there, under its own id, with the pieces that it is merged from.
    """
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *"Helo"]
    tokens = [*words, *(f"[unused {index}]" for index in range(len(words), 32000)), *PHI3_MARKS]
    tokens += [f"[unused {index}]" for index in range(len(tokens), 32064)]
    scores = [-1e4] * len(tokens)
    steps = {"\u2581H": 20000, "\u2581He": 20001, "ll": 20002, "llo": 20003, "\u2581Hello": 15043}
    for rank, (piece, index) in enumerate(steps.items()):
        tokens[index], scores[index] = piece, -float(rank + 1)
    types = np.ones(len(tokens), np.int32)
    types[0], types[1], types[2] = 2, 3, 3
    types[3:259] = 6
    types[32000:32011] = 3
    return {
        "general.architecture": "phi3",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 32000,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 32000,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": PHI3,
    }
