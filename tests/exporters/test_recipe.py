"""Recipes: which rule takes a weight, what is carried, and TOML that is no recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.errors import NotFoundError, OptionError
from edge.graph import build
from edge.ops import Role, Weight
from edge.payload import Scheme
from exporters.quant import recipe as recipes
from exporters.quant.recipe import Choice, Recipe, Rule
from tests.specs import small_spec


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


def choose(recipe: Recipe, name: str, source: Source | None = None, head_dim: int = 64) -> Choice:
    return recipe.choose(make_weight(name, 8, 8, head_dim=head_dim), source or Source())


_ROLES: dict[str, Role] = {"q": "query", "k": "key", "v": "value", "o": "output"}


def make_weight(name: str, *shape: int, head_dim: int) -> Weight:
    role = _ROLES.get(name.rpartition(".")[2])
    return Weight(name, shape, role, head_dim) if role else Weight(name, shape, "down")


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
    found = {name: str(choose(recipe, name).layout) for name in (
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
    assert recipe.choose(Weight("norm", (8,), "norm"), Source()) == Choice.of("float32")
    everything = Recipe("r", (Rule(("*",), "int4-g32-sym"),))
    assert everything.choose(Weight("layers.0.attn_norm", (8,), "norm"), Source()) == Choice.of("float32")


def test_codes_are_carried_only_where_the_rule_says_so_and_the_source_has_any() -> None:
    carry = Recipe("r", (Rule(("*",), "int4-g64-sym", carry=True),))
    keep_not = Recipe("r", (Rule(("*",), "int4-g64-sym"),))
    assert choose(carry, "head", Q4_1) == Choice.of("int4-g32-affine", "carry")
    assert choose(carry, "embed", Q8_0) == Choice.of("int8-g32-sym", "carry")
    assert choose(carry, "head") == Choice.of("int4-g64-sym")
    assert choose(keep_not, "head", Q4_1) == Choice.of("int4-g64-sym")
    assert choose(carry, "layers.0.attn.o", Q4_1, head_dim=96) == Choice.of("int4-g32-affine", "carry")
    straddling = Choice.of("int4-g32-affine", "carry", "groups of 32 straddle heads of 48")
    assert choose(carry, "layers.0.attn.o", Q4_1, head_dim=48) == straddling
    assert choose(carry, "layers.0.attn.q", Q4_1, head_dim=48) == Choice.of("int4-g32-affine", "carry")


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
    assert str(found.layout) == expected
    group = int(expected.split("-")[1][1:]) if "-" in expected else 1
    assert bool(found.note) == (expected != scheme or head_dim % group != 0)
    assert choose(recipe, "layers.0.attn.q", head_dim=head_dim) == Choice.of(scheme)


HEADS = """
    [[rule]]
    match = "layers.0.attn.[qko]"
    heads = [1, 3]
    scheme = "int8-g32-sym"
    [[rule]]
    match = "layers.*.attn.*"
    heads = [0, 1, 2]
    scheme = "int4-g64-zp"
    [[rule]]
    match = "*"
    scheme = "float16"
"""


def test_a_rule_takes_some_heads_and_the_next_the_others(tmp_path: Path) -> None:
    """Heads of 32: rows of q, columns of o, whose groups are made to fit them."""
    recipe = recipes.load(toml(tmp_path, HEADS))

    def chosen(name: str, *shape: int) -> Choice:
        return recipe.choose(make_weight(name, *shape, head_dim=32), Source())

    q = chosen("layers.0.attn.q", 160, 8)
    assert str(q.layout) == "rows 32 int4-g64-zp, 32 int8-g32-sym, 32 int4-g64-zp, 32 int8-g32-sym, 32 float16"
    assert q.methods == ("nearest",) * 5
    o = chosen("layers.0.attn.o", 8, 160)
    assert str(o.layout) == "columns 32 int4-g32-zp, 32 int8-g32-sym, 32 int4-g32-zp, 32 int8-g32-sym, 32 float16"
    assert o.note == "group 64 does not divide heads of 32; 32 used"
    assert chosen("layers.1.attn.q", 96, 8) == Choice.of("int4-g64-zp")  # all of its heads alike
    assert str(chosen("layers.1.attn.v", 128, 8).layout) == "rows 96 int4-g64-zp, 32 float16"
    assert chosen("layers.0.mlp.up", 96, 8) == Choice.of("float16")
    with pytest.raises(OptionError, match=r"recipe 'mine' names head 3 of layers\.0\.attn\.k, which has 0…1"):
        chosen("layers.0.attn.k", 64, 8)


@pytest.mark.parametrize(
    ("rules", "name", "words"),
    [
        (
            (Rule(("*",), "float16", heads=(0,)),),
            "layers.0.mlp.up",
            r"names heads of layers\.0\.mlp\.up, which has none",
        ),
        ((Rule(("*",), "float16", heads=(0,)),), "layers.0.attn.q", r"no rule for head 1 of layers\.0\.attn\.q"),
        (
            (Rule(("*",), "float16", heads=(0,)), Rule(("*",), "float16", carry=True)),
            "layers.0.attn.o",
            "which its source's groups straddle; leave out carry",
        ),
    ],
)
def test_heads_that_cannot_be_chosen_for(rules: tuple[Rule, ...], name: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        Recipe("r", rules).choose(make_weight(name, 32, 32, head_dim=16), Q4_1)


def test_heads_of_rows_carry_the_sources_codes() -> None:
    rules = (Rule(("*",), "float16", heads=(0,)), Rule(("*",), "int4-g32-sym", carry=True))
    found = Recipe("r", rules).choose(make_weight("layers.0.attn.q", 48, 32, head_dim=16), Q4_1)
    assert (str(found.layout), found.methods) == ("rows 16 float16, 32 int4-g32-affine", ("nearest", "carry"))


def test_the_shipped_recipes_cover_every_matrix() -> None:
    assert recipes.named() == ["7b", "int4-g32-sym", "int8", "sub1b"]
    for name in recipes.named():
        recipe = recipes.load(name)
        assert recipe.name == name
        found = {w.name: str(choose(recipe, w.name).layout) for w in build(small_spec()).weights if len(w.shape) == 2}
        wide = "int4-g32-sym" if name == "int4-g32-sym" else "int8-g32-sym"
        assert (found["embed"], found["head"]) == (wide, wide)
        inner = "int8-g32-sym" if name == "int8" else "int4-g32-sym"
        assert found["layers.0.attn.o"] == inner
        assert found["layers.0.mlp.down"] == ("int4-g64-sym" if name == "7b" else inner)
        assert (choose(recipe, "head", Q4_1).methods == ("carry",)) == (name != "int4-g32-sym")
    assert (recipes.pick(999_999_999), recipes.pick(1_000_000_000)) == ("sub1b", "7b")


def test_a_recipe_tells_all_of_itself() -> None:
    assert Recipe(
        "r", (Rule(("a", "b"), "float16", True), Rule(("c",), "int4-g32-zp", heads=(0, 2))), 0.5
    ).to_json() == {
        "name": "r", "activation_kl": 0.5, "rule": [
            {"match": ["a", "b"], "scheme": "float16", "method": "nearest", "carry": True},
            {"match": ["c"], "scheme": "int4-g32-zp", "method": "nearest", "carry": False, "heads": [0, 2]},
        ],
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
        (RULE + "group = 32\n", "rule 1: unknown key 'group'; known are match, scheme, method, carry, heads"),
        (RULE + '[[rule]]\nscheme = "float16"\n', "rule 2: match must be"),
        (RULE.replace('"*"', "5"), "rule 1: match must be"),
        (RULE.replace('"*"', "[]"), "rule 1: match must be"),
        (RULE.replace('"*"', '["a", 5]'), "rule 1: match must be"),
        (RULE.replace('"*"', '""'), "rule 1: match must be"),
        (RULE.replace("g32", "g48"), "rule 1: unknown scheme 'int4-g48-sym'; known are"),
        ('[[rule]]\nmatch = "*"\n', "rule 1: unknown scheme 'None'"),
        (RULE + 'carry = "yes"\n', "rule 1: carry must be true or false"),
        (RULE + 'method = "magic"\n', "rule 1: unknown method 'magic'; known are nearest, carry"),
        (RULE + "heads = 3\n", "rule 1: heads must be a list of heads"),
        (RULE + "heads = []\n", "rule 1: heads must be"),
        (RULE + "heads = [1, -1]\n", "rule 1: heads must be"),
        (RULE + "heads = [true]\n", "rule 1: heads must be"),
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
    with pytest.raises(
        NotFoundError, match="no recipe 'sub2b': no such file, and shipped are 7b, int4-g32-sym, int8, sub1b"
    ):
        recipes.load("sub2b")
    with pytest.raises(NotFoundError):
        recipes.load(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(OptionError, match=r"latin\.toml"):
        recipes.load(tmp_path / "latin.toml")


def test_a_recipe_saved_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = toml(tmp_path, '[[rule]]\nmatch = "*"\nscheme = "float16"\n')
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert choose(recipes.load(path), "embed") == Choice.of("float16")


def test_a_recipe_that_is_nested_too_deep(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"recipe .*mine\.toml: "):
        recipes.load(toml(tmp_path, "rule = " + "[" * 100_000))


def test_a_rule_without_a_method_takes_that_of_the_export(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text(
        '[[rule]]\nmatch = "head"\nscheme = "int4-g32-sym"\nmethod = "nearest"\n'
        '[[rule]]\nmatch = "*"\nscheme = "int4-g32-sym"\n',
        encoding="utf-8",
    )
    assert [rule.method for rule in recipes.load(path).rules] == ["nearest", "nearest"]
    assert [rule.method for rule in recipes.load(path, "gptq").rules] == ["nearest", "gptq"]
