"""Valid inputs for the targets to start from: tiny models of one layer whose numbers are all zero."""

from __future__ import annotations

import json
import struct
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from edge.graph import Graph
from edge.graph import build as build_graph
from edge.layers import Mla
from runtimes.native.builder import build as build_program
from runtimes.scripted import write_bundle
from tests.specs import runs_of, small_spec

CHATS = Path(__file__).parents[1] / "edge" / "chats"
CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 8, "hidden_size": 32, "intermediate_size": 32,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
}  # fmt: skip
MATRICES: Mapping[str, tuple[int, int]] = {
    "self_attn.q_proj": (32, 32), "self_attn.k_proj": (16, 32), "self_attn.v_proj": (16, 32),
    "self_attn.o_proj": (32, 32), "mlp.gate_proj": (32, 32), "mlp.up_proj": (32, 32), "mlp.down_proj": (32, 32),
}  # fmt: skip
VECTORS = ("model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm")
SIZES = {"F8_E4M3": 1, "F16": 2, "F32": 4, "I32": 4, "U32": 4}
# A stored tensor: what follows the module's name, dtype, shape.
Stored = tuple[str, str, tuple[int, ...]]


def gguf_files(folder: Path) -> list[bytes]:
    """Two kinds of tokenizer, four types of tensor."""
    seeds = []
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 1)
    for number, kind in enumerate(("F32", "Q4_1", "Q8_0", "IQ4_NL")):
        path = folder / f"seed-{number}.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_block_count(1)
        writer.add_context_length(64)
        writer.add_embedding_length(32)
        writer.add_feed_forward_length(32)
        writer.add_head_count(2)
        writer.add_head_count_kv(1)
        writer.add_layer_norm_rms_eps(1e-5)
        (_byte_level if number % 2 else _sentencepiece)(writer)
        writer.add_chat_template("{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}")
        for module, shape in {"model.embed_tokens": (8, 32), **_layer(), **dict.fromkeys(VECTORS, (32,))}.items():
            type_ = gguf.GGMLQuantizationType["F32" if len(shape) == 1 else kind]
            block, size = gguf.GGML_QUANT_SIZES[type_]
            raw = np.zeros((*shape[:-1], shape[-1] // block * size), np.uint8)
            writer.add_tensor(f"{names.get_name(module)}.weight", raw, raw_dtype=type_)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        seeds.append(path.read_bytes())
    return seeds


def _byte_level(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<s>", "a", "b", "c", "ab", "é", "1", "x"])
    writer.add_token_merges(["a b"])


def _sentencepiece(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", "\u2581", "a", "\u2581a", "<0x0A>", "x"])
    writer.add_token_scores([0.0, 0.0, 0.0, -1.0, -2.0, -3.0, 0.0, -4.0])
    writer.add_token_types([2, 3, 3, 1, 1, 1, 6, 1])
    writer.add_bos_token_id(1)


def _layer() -> dict[str, tuple[int, ...]]:
    return {f"model.layers.0.{part}": shape for part, shape in MATRICES.items()}


def folders(folder: Path) -> list[bytes]:
    """A plain model, and one in each quantization format: a config.json, a NUL, and the safetensors file."""
    formats: list[tuple[dict[str, Any], Callable[[int, int], list[Stored]]]] = [
        ({}, lambda rows, columns: [("weight", "F16", (rows, columns))]),
        (
            {"quantization": {"group_size": 32, "bits": 4}},
            lambda rows, columns: [
                ("weight", "U32", (rows, columns // 8)),
                ("scales", "F16", (rows, columns // 32)),
                ("biases", "F16", (rows, columns // 32)),
            ],
        ),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32}},
            lambda rows, columns: [
                ("qweight", "I32", (columns // 8, rows)),
                ("qzeros", "I32", (columns // 32, rows // 8)),
                ("scales", "F16", (columns // 32, rows)),
                ("g_idx", "I32", (columns,)),
            ],
        ),
        (
            {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}},
            lambda rows, columns: [
                ("qweight", "I32", (columns, rows // 8)),
                ("qzeros", "I32", (columns // 32, rows // 8)),
                ("scales", "F16", (columns // 32, rows)),
            ],
        ),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 32]}},
            lambda rows, columns: [
                ("weight", "F8_E4M3", (rows, columns)),
                ("weight_scale_inv", "F32", (rows // 16, columns // 32)),
            ],
        ),
    ]
    seeds = []
    for settings, stored in formats:
        tensors: list[Stored] = [("model.embed_tokens.weight", "F16", (8, 32))]
        tensors += [(f"{module}.weight", "F32", (32,)) for module in VECTORS]
        for module, (rows, columns) in MATRICES.items():
            tensors += [(f"model.layers.0.{module}.{key}", *rest) for key, *rest in stored(rows, columns)]  # type: ignore[misc]
        seeds.append(json.dumps({**CONFIG, **settings}).encode() + b"\0" + _safetensors(tensors))
    return seeds


def _safetensors(tensors: list[Stored]) -> bytes:
    header, at = {}, 0
    for name, dtype, shape in tensors:
        stop = at + SIZES[dtype] * prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, stop]}
        at = stop
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(at)


def configs(folder: Path) -> list[bytes]:
    """Sizes with everything that some family reads beside them, and with each kind of rope."""
    rich = {
        **CONFIG, "head_dim": 16, "sliding_window": 8, "attn_logit_softcapping": 30.0, "final_logit_softcapping": 20.0,
        "query_pre_attn_scalar": 16, "layer_types": ["sliding_attention"], "no_rope_layers": [1],
        "use_sliding_window": True, "max_window_layers": 0, "embedding_multiplier": 2.0, "attention_multiplier": 0.1,
        "residual_multiplier": 0.5, "logits_scaling": 3.0, "original_max_position_embeddings": 32,
    }  # fmt: skip
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    bands = {"factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    ropes: list[dict[str, Any]] = [
        {"rope_type": "longrope", **factors},
        {"rope_type": "yarn", "factor": 2.0, "beta_slow": 1, "beta_fast": 32, "mscale": 1.0, "mscale_all_dim": 0.5},
        {"rope_type": "llama3", **bands, "original_max_position_embeddings": 32},
        {"type": "dynamic", "factor": 2.0},
    ]
    tables = {kind: {"rope_type": "linear", "factor": 2.0} for kind in ("full_attention", "sliding_attention")}
    documents = [{**rich, "rope_scaling": rope} for rope in ropes] + [{**rich, "rope_parameters": tables}]
    return [json.dumps(document).encode() for document in documents]


def metadata(folder: Path) -> list[bytes]:
    """The keys of a GGUF file with sizes alone, and with all that the reader looks at."""
    sizes = {
        "block_count": 1, "context_length": 64, "embedding_length": 32, "feed_forward_length": 32,
        "attention.head_count": 2, "attention.head_count_kv": [1], "attention.layer_norm_rms_epsilon": 1e-5,
    }  # fmt: skip
    more = {
        "attention.key_length": 16, "attention.value_length": 16, "rope.dimension_count": 16, "rope.freq_base": 1e4,
        "attention.sliding_window": 8, "attention.sliding_window_pattern": [True], "rope.scaling.type": "yarn",
        "rope.scaling.factor": 2.0, "rope.scaling.original_context_length": 32, "rope.scaling.attn_factor": 1.0,
        "rope.scaling.yarn_beta_fast": 32.0, "expert_count": 0, "attention.causal": True, "logit_scale": 1.0,
    }  # fmt: skip
    files = [
        ("llama", sizes),
        ("llama", {**sizes, **more}),
        ("gemma3", {**sizes, **more, "final_logit_softcapping": 30.0}),
    ]
    shared = {"tokenizer.ggml.bos_token_id": 1}
    return [
        json.dumps(
            {"general.architecture": arch, **shared, **{f"{arch}.{key}": value for key, value in keys.items()}}
        ).encode()
        for arch, keys in files
    ]


def tokenizers(folder: Path) -> list[bytes]:
    """Byte-level BPE, BPE over SentencePiece's pieces, Unigram, and one that spells a control token itself."""
    byte_level = write_bundle(folder / "seed.dsedge", ["x"]).path / "tokenizer.json"
    pieces = Tokenizer(models.BPE({"<unk>": 0, "\u2581": 1, "a": 2, "\u2581a": 3, "<0x0A>": 4}, [("\u2581", "a")]))
    pieces.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    pieces.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    pieces.add_special_tokens(["<unk>", "<s>"])
    unigram = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("\u2581", -2.0)], 0, False))
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.decoder = decoders.Metaspace()
    spelled = Tokenizer(models.Unigram([("<unk>", -9.0), ("<s>", -0.1), *((c, -5.0) for c in "<s>ab")], 0, False))
    spelled.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.StripAccents()])
    spelled.add_special_tokens(["<s>"])
    return [byte_level.read_bytes(), *(text.to_str().encode() for text in (pieces, unigram, spelled))]


def manifests(folder: Path) -> list[bytes]:
    """That of the bundle which the target changes, and one with more in it."""
    text = (write_bundle(folder / "seed.dsedge", ["a"]).path / "manifest.json").read_bytes()
    data = json.loads(text)
    data["schemes"]["head"] = "float32"
    data["graphs"]["decoder"] = {
        "file": "script.json", "kind": "script", "precision": {"/layers.0/attn/q": "int8"}, "inputs": [], "outputs": []
    }  # fmt: skip
    return [text, json.dumps(data).encode()]


def templates(folder: Path) -> list[bytes]:
    """The families' templates, each with a conversation that has calls."""
    call = {
        "id": "abcdefghi",
        "type": "function",
        "function": {"name": "f", "arguments": {"a": [1, None, {"b": "<x>"}]}},
    }
    messages = [
        {"role": "system", "content": "be <|user|> brief"},
        {"role": "user", "content": "hi <|end|>"},
        {"role": "assistant", "content": "yes", "tool_calls": [call]},
        {"role": "tool", "content": "mild", "tool_call_id": "abcdefghi"},
    ]
    sources = [tomllib.loads(path.read_text(encoding="utf-8"))["template"] for path in sorted(CHATS.glob("*.toml"))]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    documents = [{"template": source, "messages": messages[1:2], "tools": None} for source in sources]
    documents += [{"template": source, "messages": messages[1:2], "tools": tools} for source in sources]
    documents += [
        {"template": "{% for m in messages %}{{ m | tojson }}{% endfor %}", "messages": messages, "tools": tools}
    ]
    return [json.dumps(document).encode() for document in documents]


def answers(folder: Path) -> list[bytes]:
    """Answers with calls in each format, in JSON and as Python literals."""
    call = '{"name": "f", "arguments": {"a": [1, null], "b": "it\'s"}}'
    literal = "{'name': 'f', 'arguments': {'a': (True, None), 'b': 'x\\'y'}}"
    texts = [
        f"<think>hm</think> so <tool_call>{call}</tool_call> and <tool_call>{literal}",
        f"[TOOL_CALLS] [{call}, {literal}] then [TOOL_CALLS]f[CALL_ID]x[ARGS]{{}}",
        f"<function_calls>[f(a=1, b=['x', None]), g()]</function_calls><|tool_call|>[{call}]<|/tool_call|>",
        f"{call}; {call} <|python_tag|>f.call(a=1)",
    ]
    return [json.dumps({"text": text}).encode() for text in texts]


def programs(folder: Path) -> list[bytes]:
    """The tables of two programs of the native engine; the vectors that they name are of `PROGRAM_VECTORS`."""
    found = []
    for exact in (False, True):
        program = build_program(GRAPH, RUNS, exact=exact)
        layer = {"ring": 0, "kv_heads": 1, "key_dim": 4, "value_dim": 4, "format": "int8"}
        tables = {
            **program.tables(), "ropes": [{"pairs": 2}], "rings": [{"slots": 32, "window": 9}],
            "layers": [layer, layer],
        }  # fmt: skip
        found.append(json.dumps(tables).encode())
    return found


def _graph() -> Graph:
    """A layer of grouped heads, and one of latent attention that keeps as much."""
    spec = small_spec(windows=(None, None), attention={"qk_norm": "head"})
    latent = replace(spec.layers[1], attention=Mla(2, None, 4, 32, 4, 4, 0.5))
    return build_graph(replace(spec, layers=(spec.layers[0], latent)))


GRAPH = _graph()
RUNS = runs_of(GRAPH, "int4-g32-sym", {GRAPH.weights[0].name: "rows 7 int8-g32-sym, 9 int4-g32-zp"})
# Norms: before attention, of queries and of keys, before the MLP; before attention, of latents, before the MLP; last.
PROGRAM_VECTORS = (8, 4, 4, 8, 8, 4, 8, 8)
