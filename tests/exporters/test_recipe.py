"""Recipes: which rule takes a weight, what is carried, and TOML that is no recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.decoder import DecoderSpec, LayerSpec, RopeSpec
from edge.errors import NotFoundError, OptionError
from edge.graph import Weight, build
from edge.payload import Scheme
from exporters.quant import recipe as recipes
from exporters.quant.recipe import Choice, Recipe, Rule


@dataclass
class Source:
    """A source tensor that may hold codes of its own."""

    scheme: Scheme | None = None
    name: str = "x"
    shape: tuple[int, ...] = (2, 2)
    dtype: str = "F32"

    def read(self, start: int = 0, stop: int | None = None) -> Any:
        return np.zeros(self.shape, np.float32)

    def codes(self, start: int = 0, stop: int | None = None) -> dict[str, Any]:
        return {}


Q4_1, Q8_0 = Source(Scheme(4, 32, "affine")), Source(Scheme(8, 32, "sym"))


def make_spec(head_dim: int = 64) -> DecoderSpec:
    return DecoderSpec("t", 300, 128, 128, 2, 2, head_dim, (LayerSpec(),), (RopeSpec(head_dim, 1e4),), 64, 1e-5, 1.0)


def choose(recipe: Recipe, name: str, source: Source | None = None, head_dim: int = 64) -> Choice:
    return recipe.choose(Weight(name, (8, 8)), source or Source(), make_spec(head_dim))


def toml(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


def test_the_first_rule_that_matches_wins(tmp_path: Path) -> None:
    recipe = recipes.load(toml(tmp_path, """
        activation_kl = 1
        [[rule]]
        match = ["layers.0.attn.?", "head"]
        scheme = "int4-g64-zp"
        [[rule]]
        match = "layers.[01].*"
        scheme = "float16"
        [[rule]]
        match = "*"
        scheme = "int8-g32-sym"
    """))  # fmt: skip
    assert (recipe.name, recipe.activation_kl) == ("mine", 1)
    found = {name: choose(recipe, name).scheme for name in (
        "layers.0.attn.q", "layers.0.mlp.up", "layers.1.attn.q", "layers.10.attn.q", "head", "embed", "LAYERS.0.attn.q",
    )}  # fmt: skip
    assert found == {
        "layers.0.attn.q": "int4-g64-zp", "layers.0.mlp.up": "float16", "layers.1.attn.q": "float16",
        "layers.10.attn.q": "int8-g32-sym", "head": "int4-g64-zp", "embed": "int8-g32-sym",
        "LAYERS.0.attn.q": "int8-g32-sym",
    }  # fmt: skip


def test_a_matrix_without_a_rule_is_an_error_and_a_vector_needs_none() -> None:
    recipe = Recipe("r", (Rule(("layers.*",), "int4-g32-sym"),))
    with pytest.raises(OptionError, match="recipe 'r' has no rule for embed; end it with a rule that matches"):
        choose(recipe, "embed")
    assert recipe.choose(Weight("norm", (8,)), Source(), make_spec()) == Choice("float32")
    everything = Recipe("r", (Rule(("*",), "int4-g32-sym"),))
    assert everything.choose(Weight("layers.0.attn_norm", (8,)), Source(), make_spec()) == Choice("float32")


def test_codes_are_carried_only_where_the_rule_says_so_and_the_source_has_any() -> None:
    carry = Recipe("r", (Rule(("*",), "int4-g64-sym", carry=True),))
    keep_not = Recipe("r", (Rule(("*",), "int4-g64-sym"),))
    assert choose(carry, "head", Q4_1) == Choice("int4-g32-affine", carried=True)
    assert choose(carry, "embed", Q8_0) == Choice("int8-g32-sym", carried=True)
    assert choose(carry, "head") == Choice("int4-g64-sym")
    assert choose(keep_not, "head", Q4_1) == Choice("int4-g64-sym")
    assert choose(carry, "layers.0.attn.o", Q4_1, head_dim=96) == Choice("int4-g32-affine", carried=True)
    straddling = Choice("int4-g32-affine", carried=True, note="groups of 32 straddle heads of 48")
    assert choose(carry, "layers.0.attn.o", Q4_1, head_dim=48) == straddling
    assert choose(carry, "layers.0.attn.q", Q4_1, head_dim=48) == Choice("int4-g32-affine", carried=True)


@pytest.mark.parametrize(
    ("scheme", "head_dim", "expected"),
    [
        ("int4-g64-sym", 64, "int4-g64-sym"),
        ("int4-g128-zp", 64, "int4-g64-zp"),
        ("int4-g128-affine", 96, "int4-g32-affine"),
        ("int4-g64-sym", 96, "int4-g32-sym"),
        ("int4-g128-sym", 128, "int4-g128-sym"),
        ("int4-g32-sym", 80, "int4-g32-sym"),  # no group divides 80: said, not hidden
        ("int4-g128-sym", 80, "int4-g128-sym"),
        ("float16", 80, "float16"),
    ],
)
def test_groups_of_o_do_not_straddle_heads(scheme: str, head_dim: int, expected: str) -> None:
    recipe = Recipe("r", (Rule(("*",), scheme),))
    found = choose(recipe, "layers.0.attn.o", head_dim=head_dim)
    assert found.scheme == expected
    group = int(expected.split("-")[1][1:]) if "-" in expected else 1
    assert bool(found.note) == (expected != scheme or head_dim % group != 0)
    assert choose(recipe, "layers.0.attn.q", head_dim=head_dim) == Choice(scheme)


def test_the_shipped_recipes_cover_every_matrix() -> None:
    assert recipes.named() == ["7b", "int4-g32-sym", "sub1b"]
    for name in recipes.named():
        recipe = recipes.load(name)
        assert recipe.name == name
        found = {w.name: choose(recipe, w.name).scheme for w in build(make_spec()).weights if len(w.shape) == 2}
        wide = "int4-g32-sym" if name == "int4-g32-sym" else "int8-g32-sym"
        assert (found["embed"], found["head"]) == (wide, wide)
        assert found["layers.0.attn.o"] == "int4-g32-sym"
        assert found["layers.0.mlp.down"] == ("int4-g64-sym" if name == "7b" else "int4-g32-sym")
        assert choose(recipe, "head", Q4_1).carried == (name != "int4-g32-sym")
    assert (recipes.pick(999_999_999), recipes.pick(1_000_000_000)) == ("sub1b", "7b")


def test_a_recipe_tells_all_of_itself() -> None:
    assert Recipe("r", (Rule(("a", "b"), "float16", True),), 0.5).to_json() == {
        "name": "r", "activation_kl": 0.5, "rule": [{"match": ["a", "b"], "scheme": "float16", "carry": True}],
    }  # fmt: skip


RULE = '[[rule]]\nmatch = "*"\nscheme = "int4-g32-sym"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rule = [", "Invalid value"),
        ("", r"no \[\[rule\]\]"),
        ("rule = []", r"no \[\[rule\]\]"),
        ('rule = "all"', r"no \[\[rule\]\]"),
        ("rule = [1]", "rule 1: 1 is no table"),
        ("grup = 32\n" + RULE, "unknown key 'grup'"),
        (RULE + "group = 32\n", "rule 1: unknown key 'group'; known are match, scheme, carry"),
        (RULE + '[[rule]]\nscheme = "float16"\n', "rule 2: match must be"),
        (RULE.replace('"*"', "5"), "rule 1: match must be"),
        (RULE.replace('"*"', "[]"), "rule 1: match must be"),
        (RULE.replace('"*"', '["a", 5]'), "rule 1: match must be"),
        (RULE.replace('"*"', '""'), "rule 1: match must be"),
        (RULE.replace("g32", "g48"), "rule 1: unknown scheme 'int4-g48-sym'; known are"),
        ('[[rule]]\nmatch = "*"\n', "rule 1: unknown scheme 'None'"),
        (RULE + 'carry = "yes"\n', "rule 1: carry must be true or false"),
        ("activation_kl = 0\n" + RULE, "activation_kl is 0"),
        ("activation_kl = nan\n" + RULE, "activation_kl is nan"),
        ("activation_kl = inf\n" + RULE, "activation_kl is inf"),
        ("activation_kl = true\n" + RULE, "activation_kl is True"),
        ('activation_kl = "low"\n' + RULE, "activation_kl is 'low'"),
    ],
)
def test_what_is_no_recipe(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        recipes.load(toml(tmp_path, text))
    assert "mine.toml" in str(caught.value)


def test_a_recipe_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no recipe 'sub2b': no such file, and shipped are 7b, int4-g32-sym, sub1b"):
        recipes.load("sub2b")
    with pytest.raises(NotFoundError):
        recipes.load(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(OptionError, match=r"latin\.toml"):
        recipes.load(tmp_path / "latin.toml")


def test_a_recipe_saved_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = toml(tmp_path, '[[rule]]\nmatch = "*"\nscheme = "float16"\n')
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert choose(recipes.load(path), "embed").scheme == "float16"


def test_a_recipe_that_is_nested_too_deep(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"recipe .*mine\.toml: "):
        recipes.load(toml(tmp_path, "rule = " + "[" * 100_000))
