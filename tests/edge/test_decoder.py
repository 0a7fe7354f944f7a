"""DecoderSpec: the round trip through JSON, and what a hostile manifest may say."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.decoder import DecoderSpec, RopeSpec
from edge.errors import FormatError
from edge.layers import Dense, Gqa, KvSpec, LayerSpec, Mla, Moe

LLAMA3 = RopeSpec(8, 5e5, "llama3", 8.0, 1.0, 4.0, 8192)
LONGROPE = RopeSpec(
    4, 1e4, "longrope", original_context=64, attention_factor=1.25, short_factors=(1.0, 1.5), long_factors=(2.0, 9.0)
)


ATTENTION = Gqa(
    heads=4, kv_heads=2, head_dim=32, scale=0.25, window=512, rope=1, softcap=50.0, qk_norm="head", qkv_bias=True,
    output_bias=True,
)  # fmt: skip
MLP = Dense(96, "gelu_tanh", bias=True)
MLA = Mla(4, 48, 32, 16, 8, 24, 0.2, rope=2, norm_eps=1e-5, latent_bias=True, output_bias=True)
MOE = Moe(8, 3, 40, "gelu_tanh", "sigmoid", True, 2.5, True, 4, 2, 2, 80)


def make_spec(**changes: Any) -> DecoderSpec:
    """A spec in which no optional field has its default."""
    kinds = (ATTENTION, replace(ATTENTION, window=None, rope=None), replace(ATTENTION, rope=0), Gqa(4, 2, 32, 0.5))
    values: dict[str, Any] = {
        "family": "test", "vocab_size": 300, "hidden_size": 64,
        "layers": tuple(LayerSpec(attention, MLP) for attention in kinds),
        "ropes": (RopeSpec(32, 1e4), LLAMA3, LONGROPE), "context": 4096, "norm_eps": 1e-6, "norm_offset": 1.0,
        "pre_norms": False, "post_norms": True, "embedding_scale": 8.0, "logit_softcap": 30.0, "tied_head": True,
    }  # fmt: skip
    return DecoderSpec(**{**values, **changes})


def layers(attention: Gqa) -> tuple[LayerSpec, ...]:
    return (LayerSpec(attention, MLP),)


def as_json(spec: DecoderSpec) -> Any:
    return json.loads(json.dumps(spec.to_json()))


def test_round_trip_through_text_keeps_every_field() -> None:
    spec = make_spec()
    assert DecoderSpec.from_json(as_json(spec)) == spec
    latent = make_spec(
        layers=(LayerSpec(replace(MLA, rope_dim=4), MOE), *spec.layers), ropes=(*spec.ropes[:2], LONGROPE)
    )
    assert DecoderSpec.from_json(as_json(latent)) == latent
    small = DecoderSpec("f", 2, 2, (LayerSpec(Gqa(1, 1, 2, 1.0), Dense(2)),), (RopeSpec(2, 1e4),), 8, 1e-5)
    data = as_json(small)
    assert data["layers"][0]["mlp"] == {"kind": "dense", "size": 2, "activation": "silu", "bias": False}
    assert data["layers"][0]["attention"]["kind"] == "gqa"
    del data["tied_head"]  # an older writer leaves out what has a default
    for name in ("qk_norm", "softcap"):
        del data["layers"][0]["attention"][name]
    assert DecoderSpec.from_json(data) == small


def test_whole_numbers_may_stand_for_floats() -> None:
    data = as_json(make_spec())
    data["embedding_scale"] = 8
    assert DecoderSpec.from_json(data) == make_spec()


def test_layers_that_keep_tokens_alike_share_a_group_in_order_of_first_use() -> None:
    spec = make_spec()
    assert spec.kv_groups == (KvSpec("heads", 2, 32, 32, 512), KvSpec("heads", 2, 32, 32, None))
    assert spec.layer_groups == (0, 1, 0, 1)
    assert replace(spec, layers=spec.layers[1:]).layer_groups == (0, 1, 0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: replace(ATTENTION, kv_heads=3), "4 heads cannot be grouped over 3 kv heads"),
        (lambda: replace(ATTENTION, head_dim=0), "head_dim is 0"),
        (lambda: replace(ATTENTION, scale=math.nan), "scale is nan"),
        (lambda: replace(ATTENTION, scale=0.0), "scale is 0.0; it must be a positive number"),
        (lambda: replace(ATTENTION, scale=-0.5), "scale is -0.5"),
        (lambda: replace(ATTENTION, scale=1e299), "scale is 1e.299"),
        (lambda: replace(ATTENTION, softcap=1e-310), "softcap is 1e-310"),
        (lambda: replace(ATTENTION, softcap=0.0), "softcap is 0.0"),
        (lambda: replace(ATTENTION, window=0), "window of 0"),
        (lambda: replace(ATTENTION, window=2**80), "window of"),
        (lambda: replace(ATTENTION, qk_norm="yes"), "'yes'; known: none, head, full"),
        (lambda: replace(MLP, activation="relu"), "'relu'; known: silu, gelu_tanh"),
        (lambda: replace(MLP, size=2**31), "size is 2147483648"),
        (lambda: replace(MLA, latent_dim=0), "latent_dim is 0"),
        (lambda: replace(MLA, query_rank=0), "query_rank is 0"),
        (lambda: replace(MLA, scale=0.0), "scale is 0.0"),
        (lambda: replace(MLA, norm_eps=0.0), "norm_eps 0.0"),
        (lambda: replace(MOE, score="argmax"), "'argmax'; known: softmax, sigmoid"),
        (lambda: replace(MOE, top_k=5), "5 of 8 experts cannot be chosen from 2 of 4 groups"),
        (lambda: replace(MOE, groups=3), "cannot be chosen"),
        (lambda: replace(MOE, group_best=3), "by their 3 best"),
        (lambda: replace(MOE, shared_size=-1), "shared_size is -1"),
        (lambda: replace(MOE, scale=math.inf), "scale is inf"),
    ],
)
def test_impossible_parts_of_a_layer_are_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(FormatError, match=words):
        make()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"hidden_size": -64}, "hidden_size is -64"),
        ({"context": 2**31}, "not a size"),
        ({"layers": ()}, "0 layers"),
        ({"layers": layers(ATTENTION) * 4097}, "4097 layers"),
        ({"norm_eps": 0.0}, "norm_eps"),
        ({"norm_eps": math.nan}, "norm_eps"),
        ({"embedding_scale": math.inf}, "embedding_scale is inf"),
        ({"embedding_scale": 10**400}, "embedding_scale"),
        ({"logit_softcap": -30.0}, "logit_softcap is -30.0"),
        ({"layers": layers(replace(ATTENTION, rope=3))}, "rope 3 of 3"),
        ({"layers": layers(replace(ATTENTION, rope=-1))}, "rope -1 of 3"),
        ({"ropes": (RopeSpec(7, 1e4), LLAMA3)}, "rope over 7 dimensions"),
        ({"ropes": (RopeSpec(34, 1e4), LLAMA3)}, "34 of 32 dimensions"),
        ({"ropes": (RopeSpec(32, 0.0), LLAMA3)}, "theta is 0.0"),
        ({"ropes": (RopeSpec(32, math.nan), LLAMA3)}, "theta is nan"),
        ({"ropes": (RopeSpec(32, 1e4, "linear", 0.0), LLAMA3)}, "factor is 0.0"),
        ({"ropes": (RopeSpec(32, 1e4, "su"), LLAMA3)}, "'su'; known: default, linear, .*llama3"),  # type: ignore[arg-type]
        ({"ropes": (RopeSpec(32, 1e4, "yarn"), LLAMA3)}, "yarn over a context of 0"),
        ({"ropes": (LLAMA3, RopeSpec(32, 1.0, "yarn", original_context=64))}, "theta of 1.0; it must be above 1"),
        ({"ropes": (LLAMA3, RopeSpec(2, 1e4, "dynamic", original_context=64))}, "dynamic over 2 dimensions"),
        ({"ropes": (LLAMA3, replace(LONGROPE, long_factors=(1.0,)))}, "1 factors for rope kind longrope of 4"),
        ({"ropes": (LLAMA3, replace(LONGROPE, kind="default"))}, "2 factors for rope kind default"),
        ({"ropes": (LLAMA3, replace(LONGROPE, short_factors=(1.0, math.nan)))}, "no positive number"),
        ({"ropes": (LLAMA3, replace(LONGROPE, attention_factor=0.0))}, "attention_factor is 0.0"),
        ({"ropes": (LLAMA3, replace(LLAMA3, original_context=0))}, "context of 0"),
        ({"ropes": (RopeSpec(32, 1e4, original_context=-1), LLAMA3)}, "default has frequency factors or a context"),
        ({"ropes": (RopeSpec(32, 1e4, low_freq_factor=math.nan), LLAMA3)}, "default has frequency factors"),
        ({"ropes": (LLAMA3, replace(LLAMA3, low_freq_factor=4.0))}, "frequency factors 4.0 and 4.0"),
    ],
)
def test_impossible_specs_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(FormatError, match=words):
        make_spec(**changes)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("hidden_size",), "4", "hidden_size is '4', which is no int"),
        (("hidden_size",), 4.0, "no int"),
        (("hidden_size",), True, "no int"),
        (("tied_head",), 1, "no bool"),
        (("norm_eps",), None, "no float"),
        (("family",), 3, "no str"),
        (("layers",), 5, "TypeError"),
        (("layers",), "abc", "a layer of a; it has an attention and an mlp"),
        (("layers", 0), None, "TypeError"),
        (("layers", 0), {"attention": {}}, "a layer of attention; it has"),
        (("layers", 0, "mlp"), None, "TypeError"),
        (("layers", 0, "attention", "kind"), "mamba", "attention of kind 'mamba'; known: gqa, mla"),
        (("layers", 0, "attention", "kind"), ["gqa"], "TypeError"),
        (("layers", 0, "attention", "window"), "all", "no int"),
        (("layers", 0, "attention", "windows"), 3, "unknown field 'windows' in Gqa"),
        (("layers", 0, "mlp", "activation"), ["silu"], "activation"),
        (("kv_groups",), [], "TypeError"),
        (("ropes", 1, "kind"), ["llama3"], "rope kind"),
        (("ropes", 0, "theta"), False, "no float"),
        (("ropes", 2, "short_factors"), 1.0, "short_factors is no list of numbers"),
        (("ropes", 2, "long_factors"), [1.0, True], "long_factors is no list of numbers"),
        (("ropes", 2, "long_factors"), [1.0, 10**400], "long_factors is no list of numbers"),
        (("more",), 1, "unknown field 'more' in DecoderSpec"),
    ],
)
def test_ill_typed_json_is_refused(path: tuple[Any, ...], value: Any, words: str) -> None:
    data = as_json(make_spec())
    target = data
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    with pytest.raises(FormatError, match=words):
        DecoderSpec.from_json(data)


@pytest.mark.parametrize("name", ["family", "layers", "ropes", "norm_eps"])
def test_a_missing_field_is_named(name: str) -> None:
    data = as_json(make_spec())
    del data[name]
    with pytest.raises(FormatError, match=name):
        DecoderSpec.from_json(data)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
                    max_leaves=8), st.integers(0, 30))  # fmt: skip
def test_any_value_in_any_place_is_a_spec_or_a_bundle_error(value: Any, place: int) -> None:
    data = as_json(make_spec())
    names = [
        *data,
        "layers.0",
        "ropes.0",
        "layers.1.attention",
        "layers.1.attention.window",
        "layers.0.mlp.kind",
        "ropes.1.theta",
        "ropes.1.factor",
        "whole",
    ]
    name = names[place % len(names)]
    target, parts = data, name.split(".")
    for key in parts[:-1]:
        target = target[int(key) if key.isdigit() else key]
    if name != "whole":
        target[int(parts[-1]) if parts[-1].isdigit() else parts[-1]] = value
    try:
        spec = DecoderSpec.from_json(value if name == "whole" else data)
    except FormatError:
        return
    assert DecoderSpec.from_json(as_json(spec)) == spec
