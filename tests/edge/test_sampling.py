"""The rule of sampling, on each core: against slow models written from its text, and core against core."""

from __future__ import annotations

import math
from importlib.util import find_spec
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.errors import NumericsError, OptionError
from edge.numpy_sampling import NumpyCore, philox, uniform, uniforms
from edge.options import GenerateOptions
from edge.sampling import CORES, Sampler, make_rule
from runtimes.native import sampling as native_sampling

Logits = npt.NDArray[np.float32]


CORE_PARAMS = [
    "numpy",
    pytest.param("native", marks=pytest.mark.skipif(not native_sampling.usable(), reason="the engine was not built")),
    pytest.param("torch", marks=pytest.mark.skipif(not find_spec("torch"), reason="torch is not installed")),
]


@pytest.fixture(autouse=True, params=CORE_PARAMS)
def core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The core that samplers of this test have."""
    monkeypatch.setattr("edge.sampling.fastest_core", lambda: request.param)
    return str(request.param)


def sampler(vocab: int, **options: Any) -> Sampler:
    return Sampler(GenerateOptions(**{"seed": 7, **options}), vocab)


def adjusted(logits: Logits, prompt: list[int], answer: list[int], **options: Any) -> list[float]:
    """The logits after steps 1 to 3, as the numpy core has them; the cores are compared with each other below."""
    core = NumpyCore(make_rule(GenerateOptions(**options), len(logits), model={}))
    core.prompt(prompt)
    for token in answer:
        core.accept(token)
    made: list[float] = core._adjust(logits, None).tolist()
    return made


def floats(*values: float) -> Logits:
    return np.array(values, np.float32)


def order(logits: Logits) -> list[int]:
    return sorted(range(len(logits)), key=lambda n: (-float(logits[n]), n))


def slow_draw(logits: Logits, options: GenerateOptions, draw: int, slack: float = 1e-12) -> int:
    """Steps 5 to 9 of the rule, written from its text with plain loops; `slack`: sums a rounding away from top_p."""
    sampling = options.sampling({})
    ranked = [n for n in order(logits) if logits[n] > -math.inf]
    top = float(logits[ranked[0]])
    weight = {n: math.exp(max(-745.2, (float(logits[n]) - top) / sampling.temperature)) for n in ranked}
    if sampling.top_k:
        ranked = ranked[: sampling.top_k]
    if sampling.top_p < 1:
        goal = sampling.top_p * math.fsum(weight[n] for n in ranked)
        size = next(i for i in range(1, len(ranked) + 1) if math.fsum(weight[n] for n in ranked[:i]) >= goal - slack)
        ranked = ranked[:size]
    ranked = [n for n in ranked if weight[n] >= sampling.min_p]
    target = uniform(options.seed or 0, draw) * math.fsum(weight[n] for n in ranked)
    running = 0.0
    for n in ranked:
        running += weight[n]
        if running > target:
            return n
    return ranked[-1]


@pytest.mark.parametrize(("counter", "key", "expected"), [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
])  # fmt: skip
def test_philox_gives_its_authors_known_answers(counter: Any, key: Any, expected: Any) -> None:
    # The philox4x32_10 lines of kat_vectors in the Random123 distribution.
    assert philox(counter, key) == expected


def test_uniform_is_made_as_documented() -> None:
    assert uniform(0, 0) == (0x6627E8D5E169C58D >> 11) / 2**53
    x0, x1, _, _ = philox((5, 1, 0, 0), (0xDEADBEEF, 0x12345678))
    assert uniform(0x12345678DEADBEEF, 2**32 + 5) == ((x0 * 2**32 + x1) // 2**11) / 2**53
    values = list(islice(uniforms(3), 4000))
    assert values[:50] == [uniform(3, n) for n in range(50)]
    assert 0 <= min(values) < 0.01
    assert 0.99 < max(values) < 1
    assert abs(np.mean(values) - 0.5) < 0.02


def test_greedy_takes_the_lowest_id_of_equals_and_draws_nothing() -> None:
    greedy = sampler(6)
    assert greedy.sample(floats(1, 3, -1, 3, 3, 0)) == 1
    assert greedy.draws == 0


def test_the_same_seed_gives_the_same_tokens() -> None:
    logits = np.random.default_rng(0).standard_normal(500).astype(np.float32)
    first, second, other = (sampler(500, temperature=1, seed=seed) for seed in (5, 5, 6))
    tokens = [[picker.sample(logits) for _ in range(50)] for picker in (first, second, other)]
    assert tokens[0] == tokens[1] != tokens[2]
    assert first.draws == 50
    expected = [slow_draw(logits, GenerateOptions(temperature=1, seed=5), draw) for draw in range(50)]
    assert tokens[0] == expected


def test_a_fresh_seed_is_reported_and_repeats_the_answer() -> None:
    logits = np.zeros(1000, np.float32)
    fresh = Sampler(GenerateOptions(temperature=1), 1000)
    tokens = [fresh.sample(logits) for _ in range(20)]
    assert 0 <= fresh.seed < 2**53
    again = sampler(1000, temperature=1, seed=fresh.seed)
    assert [again.sample(logits) for _ in range(20)] == tokens
    assert Sampler(GenerateOptions(temperature=1), 1000).seed != fresh.seed


def test_draws_follow_the_softmax() -> None:
    logits, temperature, count = floats(2, 0.5, 1, -1, 0.5, -6), 0.8, 6000
    picker = sampler(6, temperature=temperature, seed=11)
    seen = np.bincount([picker.sample(logits) for _ in range(count)], minlength=6)
    weights = np.exp(logits.astype(np.float64) / temperature)
    expected = count * weights / weights.sum()
    assert np.sum((seen - expected) ** 2 / expected) < 20.5  # chi-square, 5 degrees of freedom, p = 0.001


@pytest.mark.parametrize("shape", ["peaked", "flat", "steps", "equal"])
@pytest.mark.parametrize("options", [
    {},
    {"temperature": 0.3},
    {"temperature": 5.0},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 999},
    {"top_p": 0.0},
    {"top_p": 0.3},
    {"top_p": 0.95},
    {"min_p": 0.02},
    {"min_p": 1.0},
    {"top_k": 20, "top_p": 0.8, "min_p": 0.05, "temperature": 1.5},
    {"top_p": 0.9, "min_p": 0.3},
    {"top_k": 5, "min_p": 0.3},
])  # fmt: skip
def test_truncation_equals_a_slow_model(options: dict[str, Any], shape: str) -> None:
    rng = np.random.default_rng(3)
    logits = {
        "peaked": rng.standard_normal(300) * 6,
        "flat": rng.standard_normal(300) * 0.05,
        "steps": np.round(rng.standard_normal(300)),  # ties everywhere
        "equal": np.zeros(300),
    }[shape].astype(np.float32)
    full = GenerateOptions(**{"seed": 21, "temperature": 1.0, **options})
    picker = Sampler(full, 300)
    assert [picker.sample(logits) for _ in range(60)] == [slow_draw(logits, full, draw) for draw in range(60)]


def test_any_logits_equal_a_slow_model() -> None:
    value = st.floats(-60, 60, width=32) | st.sampled_from([-math.inf, 0.0, -0.0, 1.0])
    chance = st.sampled_from([0.1, 0.5, 0.9, 1.0])

    @settings(max_examples=150, deadline=None)
    @given(st.lists(value, min_size=1, max_size=30), st.floats(0.05, 9), st.integers(0, 12), chance, chance)
    def check(values: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> None:
        logits = floats(*values)
        if not np.isfinite(logits).any():
            return
        options = GenerateOptions(
            seed=1, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p if min_p < 1 else 0
        )
        picker = Sampler(options, len(values))
        for draw in range(4):
            assert picker.sample(logits) in {slow_draw(logits, options, draw, slack) for slack in (1e-12, -1e-12)}

    check()


def test_a_negative_zero_ties_with_a_zero() -> None:
    logits, options = floats(-0.0, 0.0, -0.0, 0.0), GenerateOptions(seed=4, temperature=1.0)
    picker = Sampler(options, 4)
    drawn = [picker.sample(logits) for _ in range(20)]
    assert drawn == [int(4 * uniform(4, draw)) for draw in range(20)]  # quarters in order of the ids


@pytest.mark.parametrize("temperature", [1e-300, 1e-30, 1e-4])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    picker = sampler(5, temperature=temperature)
    assert {picker.sample(floats(1, 4, 3.9, -2, 4)) for _ in range(40)} == {1, 4}  # equals share, by the rule


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits() -> None:
    # Seen: 0 (prompt), 1 (prompt and answer), 3 (answer). 4 / 2 = 2, 3 / 2 = 1.5, -1 * 2 = -2.
    picker = sampler(5, repetition_penalty=2.0)
    picker.prompt([0, 1, 1])
    for token in (1, 3):
        picker.accept(token)
    assert adjusted(floats(4, 3, 1.75, -1, 0), [0, 1, 1], [1, 3], repetition_penalty=2.0) == [2, 1.5, 1.75, -2, 0]
    assert picker.sample(floats(4, 3, 1.75, -1, 0)) == 0
    assert picker.sample(floats(3.4, 3, 1.75, -1, 0)) == 2


def test_presence_and_frequency_count_the_answer_only() -> None:
    picker = sampler(4, presence_penalty=1.0, frequency_penalty=0.25)
    picker.prompt([0, 0, 0])
    for token in (1, 2, 2, 2):
        picker.accept(token)
    penalties = {"presence_penalty": 1.0, "frequency_penalty": 0.25}
    assert adjusted(floats(5, 5, 5, 5), [0, 0, 0], [1, 2, 2, 2], **penalties) == [5, 3.75, 3.25, 5]
    assert picker.sample(floats(3, 5, 4.5, 3.5)) == 1
    assert picker.sample(floats(4, 5, 4.5, 3.5)) == 0


def test_adjustments_come_in_the_documented_order() -> None:
    # (6 / 2 - 1 - 0.5 * 1) + 2 = 3.5; the bias of an unseen token: 1 + 2.25 = 3.25.
    penalties = {"repetition_penalty": 2.0, "presence_penalty": 1.0, "frequency_penalty": 0.5}
    made = adjusted(floats(6, 3.4, 1), [], [0], **penalties, logit_bias={0: 2.0, 2: 2.25})
    assert made == [3.5, np.float32(3.4), 3.25]


def test_penalties_stay_right_as_the_answer_grows() -> None:
    rng = np.random.default_rng(5)
    logits, tokens = rng.standard_normal(900).astype(np.float32), rng.integers(0, 900, 1500)
    penalties = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.1}
    made = adjusted(logits, tokens[:500].tolist(), tokens[500:].tolist(), **penalties)
    expected = []
    for n, logit in enumerate(logits.tolist()):
        value = logit
        if n in tokens:
            value = float(np.float32(value / 1.3 if value > 0 else value * 1.3))
        count = int(np.sum(tokens[500:] == n))
        expected.append(np.float32(value - 0.4 - 0.1 * count) if count else np.float32(value))
    assert made == [float(value) for value in expected]


def test_a_bias_bans_and_forces_tokens() -> None:
    logits = floats(3, 2, 1, 0)
    assert sampler(4, logit_bias={0: -100.0}).sample(logits) == 1
    assert sampler(4, logit_bias={3: 100.0}).sample(logits) == 3
    picker = sampler(4, logit_bias={0: -100.0}, temperature=2.0)
    assert 0 not in {picker.sample(logits) for _ in range(100)}


@pytest.mark.parametrize("options", [
    {"logit_bias": {0: 1.0}, "repetition_penalty": 1.5}, {"temperature": 1.0, "top_p": 0.9}, {},
])  # fmt: skip
def test_the_callers_logits_stay_as_they_are(options: dict[str, Any]) -> None:
    logits = floats(1, 2, 3, 4)
    logits.flags.writeable = False
    picker = sampler(4, **options)
    picker.accept(0)
    picker.sample(logits)
    assert logits.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.0}, {"repetition_penalty": 1.5}, {"top_k": 2, "temperature": 1}]
)
def test_logits_that_are_no_numbers_are_an_error(bad: float, options: dict[str, Any]) -> None:
    with pytest.raises(NumericsError, match=f"the logit of token 2 is {bad}"):
        sampler(4, **options).sample(floats(5, 1, bad, 2))
    with pytest.raises(NumericsError):
        sampler(2, **options).sample(floats(-math.inf, -math.inf))


@pytest.mark.parametrize("bias", [{4: 1.0}, {-1: 1.0}])
def test_a_bias_that_does_not_fit_is_refused(bias: dict[int, float]) -> None:
    with pytest.raises(OptionError, match="ids are 0 to 3"):
        sampler(4, logit_bias=bias)


@pytest.mark.parametrize("spread", [0.0, 0.1, 3.0, 30.0])
@pytest.mark.parametrize("options", [
    {"temperature": 2.0},
    {"temperature": 1.0, "top_p": 0.97},
    {"temperature": 0.9, "top_k": 4000},
    {"temperature": 0.8, "top_k": 15_000, "top_p": 0.9},
])  # fmt: skip
def test_a_large_vocabulary_is_drawn_from_as_deep_as_it_must(options: dict[str, Any], spread: float) -> None:
    logits = (np.random.default_rng(8).standard_normal(20_000) * spread).astype(np.float32)
    full = GenerateOptions(seed=9, **options)
    picker = Sampler(full, len(logits))
    sampling = full.sampling({})
    weights = np.exp((logits.astype(np.float64) - logits.max()) / sampling.temperature)
    ranked = np.array(order(logits))
    sums = np.cumsum(weights[ranked])
    count = sampling.top_k or len(ranked)
    count = int(np.searchsorted(sums[:count], sampling.top_p * sums[count - 1])) + 1 if sampling.top_p < 1 else count
    for draw in range(40):
        place = np.searchsorted(sums, uniform(9, draw) * sums[count - 1], side="right")
        assert picker.sample(logits) == ranked[place]


def test_weights_that_round_to_one_all_pass_a_min_p_of_one() -> None:
    logits = (np.random.default_rng(8).standard_normal(20_000) * 1e-20).astype(np.float32)
    picker = Sampler(GenerateOptions(seed=9, temperature=1.0, top_p=0.5, min_p=1.0), len(logits))
    ranked = order(logits)
    for draw in range(20):
        assert picker.sample(logits) == ranked[int(10_000 * uniform(9, draw))]


@pytest.mark.parametrize("options", [{"temperature": 1.0}, {"temperature": 0.8, "top_p": 0.7}])
def test_the_exact_sum_decides_where_the_rough_one_cannot(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a bound so wide that most draws are in doubt, the draws are those of the exact sum, one by one."""
    logits = np.random.default_rng(5).normal(0, 3, 2000).astype(np.float32)
    usual = Sampler(GenerateOptions(seed=3, **options), 2000, core="numpy")
    expected = [usual.sample(logits) for _ in range(200)]
    exact: list[int] = []
    weights = NumpyCore._weights

    def counted(self: NumpyCore, some: Logits, top: float) -> Any:
        exact.append(len(some))
        return weights(self, some, top)

    monkeypatch.setattr("edge.numpy_sampling._ROUGH", 0.5)
    monkeypatch.setattr(NumpyCore, "_weights", counted)
    doubtful = Sampler(GenerateOptions(seed=3, **options), 2000, core="numpy")
    assert [doubtful.sample(logits) for _ in range(200)] == expected
    assert exact.count(2000) > 100


PENALTIES = {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2}


def test_an_answer_that_was_taken_back_is_as_if_it_had_not_been() -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(0, 2, (12, 60)).astype(np.float32)
    straight, rejected = (sampler(60, temperature=0.9, seed=5, **PENALTIES) for _ in range(2))
    for picker in (straight, rejected):
        picker.prompt([3, 4, 4])
    expected = []
    for row in rows:
        expected.append(straight.sample(row))
        straight.accept(expected[-1])
    for kept, row in enumerate(rows):
        for draft in (1, 2, 3, 1):  # four tokens that a larger model does not confirm
            rejected.sample(row)
            rejected.accept(draft)
        rejected.truncate(kept)
        assert rejected.draws == kept
        assert rejected.sample(row) == expected[kept]
        rejected.accept(expected[kept])


def test_a_mask_leaves_out_ids_and_no_bias_brings_them_back() -> None:
    logits, allowed = floats(5, 4, 3, 2), np.array([False, False, True, True])
    assert sampler(4, logit_bias={0: 100.0}).sample(logits, allowed) == 2
    picker = sampler(4, temperature=1.0, seed=8)
    ratio = 1 / (1 + math.exp(-1))  # of what is left, token 2 has the greater weight
    assert [picker.sample(logits, allowed) for _ in range(50)] == [2 if uniform(8, n) < ratio else 3 for n in range(50)]
    with pytest.raises(NumericsError):
        picker.sample(logits, np.zeros(4, np.bool_))


@pytest.mark.skipif(not native_sampling.usable(), reason="the engine was not built")
@pytest.mark.parametrize("options", [
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 40, "min_p": 0.05},
    {"temperature": 2.0, "min_p": 0.1, "logit_bias": {3: 4.0, 7: -100.0}},
    {"temperature": 0.9, "top_k": 2**40},
])  # fmt: skip
@pytest.mark.parametrize("vocab", [9, 64, 8192, 49_152])
def test_the_cores_choose_the_same_tokens(options: dict[str, Any], vocab: int, core: str) -> None:
    """Draw by draw, through answers that grow and are cut, with and without penalties, masks and padded rows."""
    if core != "numpy":
        return  # all are in here
    names = [name for name in CORES if name != "torch" or find_spec("torch")]
    rng = np.random.default_rng(vocab)
    for penalties in ({}, PENALTIES):
        full = GenerateOptions(seed=int(rng.integers(2**63)), **{**options, **penalties})
        pickers = [Sampler(full, vocab, padded=(0, vocab - 1), core=name) for name in names]
        prompt = rng.integers(1, vocab - 1, 30).tolist()
        for picker in pickers:
            picker.prompt(prompt)
        for step in range(24):
            logits = (rng.standard_normal(vocab) * (0.2, 3, 20)[step % 3]).astype(np.float32)
            logits = np.round(logits) if step % 5 == 0 else logits
            allowed = rng.random(vocab) < 0.7 if step % 4 == 0 else None
            tokens = {picker.sample(logits, allowed) for picker in pickers}
            assert len(tokens) == 1, (step, tokens)
            for picker in pickers:
                picker.accept(min(tokens))
                if step % 11 == 10:
                    picker.truncate(step // 2 if options["temperature"] else 3)
            assert len({picker.draws for picker in pickers}) == 1


def test_the_native_core_draws_the_documented_numbers() -> None:
    native = pytest.importorskip("runtimes.native._native")
    for seed, draw in [(0, 0), (7, 3), (2**64 - 1, 2**40 + 1)]:
        assert native.uniform(seed, draw) == uniform(seed, draw)


@pytest.mark.parametrize(("fields", "message"), [
    ({"end": 0}, "vocabulary"), ({"bias": [1.0]}, "as many biases"), ({"holes": [9]}, "outside of the vocabulary"),
    ({"top_k": "4"}, "another type"), ({"wrong": 1}, "not known"),
])  # fmt: skip
def test_the_native_core_refuses_a_rule_that_it_does_not_know(fields: dict[str, Any], message: str) -> None:
    native = pytest.importorskip("runtimes.native._native")
    rule = {
        "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition": 1.0, "presence": 0.0,
        "frequency": 0.0, "seed": 1, "end": 9, "holes": [], "bias_ids": [], "bias": [],
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        native.Sampler({**rule, **fields}, "")
    made = native.Sampler(rule, "")
    with pytest.raises(ValueError, match="fewer logits"):
        made.sample(np.zeros(8, np.float32), None)
    with pytest.raises(ValueError, match="outside of the vocabulary"):
        made.accept(9)
    with pytest.raises(ValueError, match="more tokens than were accepted"):
        made.truncate(1)
