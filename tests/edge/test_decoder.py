"""DecoderSpec: the round trip through JSON, and what a hostile manifest may say."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.decoder import DecoderSpec, LayerSpec, RopeSpec
from edge.errors import BundleError

LLAMA3 = RopeSpec(8, 5e5, "llama3", 8.0, 1.0, 4.0, 8192)
LONGROPE = RopeSpec(
    4, 1e4, "longrope", original_context=64, attention_factor=1.25, short_factors=(1.0, 1.5), long_factors=(2.0, 9.0)
)


def make_spec(**changes: Any) -> DecoderSpec:
    """A spec in which no optional field has its default."""
    values: dict[str, Any] = {
        "family": "test", "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "heads": 4, "kv_heads": 2,
        "head_dim": 32, "layers": (LayerSpec(512, 1), LayerSpec(None, None), LayerSpec(512, 0), LayerSpec()),
        "ropes": (RopeSpec(32, 1e4), LLAMA3, LONGROPE), "context": 4096, "norm_eps": 1e-6, "attention_scale": 0.25,
        "norm_offset": 1.0, "pre_norms": False, "post_norms": True, "qk_norm": "head", "qkv_bias": True,
        "output_bias": True, "mlp_bias": True, "activation": "gelu_tanh", "embedding_scale": 8.0,
        "attention_softcap": 50.0, "logit_softcap": 30.0, "tied_head": True,
    }  # fmt: skip
    return DecoderSpec(**{**values, **changes})


def as_json(spec: DecoderSpec) -> Any:
    return json.loads(json.dumps(spec.to_json()))


def test_round_trip_through_text_keeps_every_field() -> None:
    spec = make_spec()
    assert DecoderSpec.from_json(as_json(spec)) == spec
    small = DecoderSpec("f", 2, 2, 2, 1, 1, 2, (LayerSpec(),), (RopeSpec(2, 1e4),), 8, 1e-5, 1.0)
    data = as_json(small)
    assert data["layers"] == [{"window": None, "rope": 0}]
    for name in ("tied_head", "qk_norm", "attention_softcap"):  # an older writer leaves out what has a default
        del data[name]
    assert DecoderSpec.from_json(data) == small


def test_whole_numbers_may_stand_for_floats() -> None:
    data = as_json(make_spec())
    data["embedding_scale"] = 8
    assert DecoderSpec.from_json(data) == make_spec()


def test_layers_with_one_window_share_a_ring_in_order_of_first_use() -> None:
    assert make_spec().windows == (512, None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"hidden_size": -64}, "hidden_size is -64"),
        ({"context": 2**31}, "not a size"),
        ({"layers": ()}, "0 layers"),
        ({"layers": (LayerSpec(),) * 4097}, "4097 layers"),
        ({"kv_heads": 3}, "4 heads cannot be grouped over 3 kv heads"),
        ({"norm_eps": 0.0}, "norm_eps"),
        ({"norm_eps": math.nan}, "norm_eps"),
        ({"attention_scale": math.nan}, "attention_scale is nan"),
        ({"embedding_scale": math.inf}, "embedding_scale is inf"),
        ({"embedding_scale": 10**400}, "embedding_scale"),
        ({"attention_softcap": 0.0}, "attention_softcap is 0.0"),
        ({"logit_softcap": -30.0}, "logit_softcap is -30.0"),
        ({"layers": (LayerSpec(rope=3),)}, "rope 3 of 3"),
        ({"layers": (LayerSpec(rope=-1),)}, "rope -1 of 3"),
        ({"layers": (LayerSpec(window=0),)}, "window of 0"),
        ({"layers": (LayerSpec(window=2**80),)}, "window of"),
        ({"ropes": (RopeSpec(7, 1e4), LLAMA3)}, "7 of 32 dimensions"),
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
        ({"ropes": (LLAMA3, replace(LLAMA3, low_freq_factor=4.0))}, "frequency factors 4.0 and 4.0"),
        ({"activation": "relu"}, "'relu'; known: silu, gelu_tanh"),
        ({"qk_norm": "yes"}, "'yes'; known: none, head, full"),
    ],
)
def test_impossible_specs_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BundleError, match=words):
        make_spec(**changes)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("heads",), "4", "heads is '4', which is no int"),
        (("heads",), 4.0, "no int"),
        (("heads",), True, "no int"),
        (("tied_head",), 1, "no bool"),
        (("norm_eps",), None, "no float"),
        (("family",), 3, "no str"),
        (("layers",), 5, "TypeError"),
        (("layers",), "abc", "AttributeError"),
        (("layers", 0), None, "AttributeError"),
        (("layers", 0, "window"), "all", "no int"),
        (("layers", 0, "windows"), 3, "unknown field 'windows' in LayerSpec"),
        (("ropes", 1, "kind"), ["llama3"], "rope kind"),
        (("ropes", 0, "theta"), False, "no float"),
        (("ropes", 2, "short_factors"), 1.0, "short_factors is no list of numbers"),
        (("ropes", 2, "long_factors"), [1.0, True], "long_factors is no list of numbers"),
        (("ropes", 2, "long_factors"), [1.0, 10**400], "long_factors is no list of numbers"),
        (("activation",), ["silu"], "activation"),
        (("more",), 1, "unknown field 'more' in DecoderSpec"),
    ],
)
def test_ill_typed_json_is_refused(path: tuple[Any, ...], value: Any, words: str) -> None:
    data = as_json(make_spec())
    target = data
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    with pytest.raises(BundleError, match=words):
        DecoderSpec.from_json(data)


@pytest.mark.parametrize("name", ["family", "layers", "ropes", "attention_scale"])
def test_a_missing_field_is_named(name: str) -> None:
    data = as_json(make_spec())
    del data[name]
    with pytest.raises(BundleError, match=name):
        DecoderSpec.from_json(data)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
                    max_leaves=8), st.integers(0, 30))  # fmt: skip
def test_any_value_in_any_place_is_a_spec_or_a_bundle_error(value: Any, place: int) -> None:
    data = as_json(make_spec())
    names = [*data, "layers.0", "ropes.0", "layers.1.window", "ropes.1.theta", "ropes.1.factor", "whole"]
    name = names[place % len(names)]
    target, parts = data, name.split(".")
    for key in parts[:-1]:
        target = target[int(key) if key.isdigit() else key]
    if name != "whole":
        target[int(parts[-1]) if parts[-1].isdigit() else parts[-1]] = value
    try:
        spec = DecoderSpec.from_json(value if name == "whole" else data)
    except BundleError:
        return
    assert DecoderSpec.from_json(as_json(spec)) == spec
