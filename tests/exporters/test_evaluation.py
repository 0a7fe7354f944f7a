"""`dsedge eval`: figures against ones that are computed here, and what is refused."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from edge.bundle import Bundle
from edge.cli import main
from edge.errors import NotFoundError, OptionError, UnsupportedError
from edge.measured import Measured
from edge.quality import QualityReport
from edge.runtime import automatic, support
from edge.tokenizer import open_tokenizer
from exporters import evaluation, parity
from exporters.report import copying, greedy, measure
from exporters.report import texts as held_out
from exporters.report.models import FromBundle
from tests.exporters.tiny import load_reference, tiny_llama

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(" ".join(f"The dog {index} sleeps, and the fox jumps over {index * 7}." for index in range(60)))
    return path


def silent(stage: str, done: float, transfer: object = None) -> None:
    pass


def samples(bundle: Bundle, text: Path) -> list[list[int]]:
    content = text.read_text(encoding="utf-8")
    found = measure.describe_text("text", content, "", "", FromBundle(bundle)).samples
    assert list(found) == [512]
    return [list(ids) for ids in found[512]]


def test_against_its_source_a_bundle_is_as_far_as_torch_says(
    llama_bundle: Bundle, llama_folder: Path, text: Path
) -> None:
    row = evaluation.evaluate(FromBundle(llama_bundle), [text], llama_folder, silent).rows[0]
    parts = samples(llama_bundle, text)
    assert len(parts) > 2
    assert (row.length, row.tokens, row.kv) == (512, 512 * len(parts), "auto")
    model, kl, same, among, losses, source_losses = load_reference(llama_folder), [], [], [], [], []
    for ids in parts:
        with torch.no_grad():
            a = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
        b = torch.log_softmax(
            torch.from_numpy(parity.run_graph(llama_bundle, ids, exact=False, chunk=256, runtime="auto")).double(), -1
        )
        kl.append((a.exp() * (a - b)).sum(-1)[64:])
        same.append((a.argmax(-1) == b.argmax(-1))[64:].double())
        among.append((a.argmax(-1)[:, None] == b.topk(5).indices).any(-1)[64:].double())
        for into, logits in ((losses, b), (source_losses, a)):
            into.append(-logits[:-1].gather(1, torch.tensor(ids[1:])[:, None]).mean())
    found = row.against
    assert found is not None
    assert found.mean_kl == pytest.approx(float(torch.cat(kl).mean()), rel=1e-3)
    assert found.p99_kl == pytest.approx(float(torch.cat(kl).quantile(0.99)), rel=1e-3)
    assert found.top1 == pytest.approx(float(torch.cat(same).mean()), abs=2e-3)
    assert found.top5 == pytest.approx(float(torch.cat(among).mean()), abs=2e-3)
    assert row.perplexity == pytest.approx(float(torch.stack(losses).mean().exp()), rel=1e-4)
    assert found.perplexity == pytest.approx(float(torch.stack(source_losses).mean().exp()), rel=1e-4)
    ranges = {"128": slice(0, 64), "256": slice(64, 192), "512": slice(192, 448)}
    expected = {end: float(torch.stack([item[part] for item in kl]).mean()) for end, part in ranges.items()}
    assert found.kl_by_position == pytest.approx(expected, rel=1e-3)


def test_greedy_answers_diverge_where_two_answers_differ(llama_bundle: Bundle, llama_folder: Path, text: Path) -> None:
    """The other model only reads; its own answers, written here, must part at the same tokens."""
    row = evaluation.evaluate(FromBundle(llama_bundle), [text], llama_folder, silent).rows[0]
    model, counts = load_reference(llama_folder), []
    with FromBundle(llama_bundle)(512) as own:
        for ids in samples(llama_bundle, text)[:8]:
            mine = greedy.answer(own, ids[:64], 64)
            its: list[int] = []
            while len(its) < 64 and its == mine[: len(its)]:
                with torch.no_grad():
                    its.append(int(model(torch.tensor([ids[:64] + its])).logits[0, -1].argmax()))
            counts.append(len(its) - (its != mine[: len(its)]))
    assert row.against is not None
    assert row.against.greedy is not None
    assert row.against.greedy.agreed == pytest.approx(np.mean(counts))
    assert row.against.greedy.same == pytest.approx(np.mean([count == 64 for count in counts]))


def test_an_answer_ends_at_an_end_token(llama_bundle: Bundle, text: Path) -> None:
    ids = samples(llama_bundle, text)[0][:64]
    with FromBundle(llama_bundle)(512) as own:
        whole = greedy.answer(own, ids, 16)
        assert greedy.answer(own, ids, 16, ends=[whole[3]]) == whole[: whole.index(whole[3]) + 1]
        assert greedy.agreed(own, ids, whole) == 16


def test_repeated_numbers_and_identifiers_are_found(llama_bundle: Bundle) -> None:
    tokenizer = open_tokenizer(llama_bundle)
    filler = "and so on, the dog sleeps there. " * 8
    ids = tokenizer.encode(f"Call 555-0199 by 10:45; max_value. {filler}At 10:45 max_value was 7, 555-0199 or 5550.")
    found = copying.repeated(tokenizer, ids)
    assert [tokenizer.decode(ids[first:stop]).strip(" ,") for first, stop in found] == [
        "10:45",
        "max_value",
        "555-0199",
    ]
    text = (held_out.read("prose") or "")[:1500] + " – äöü €5 日本 – "
    long = tokenizer.encode(text * 2)
    assert len(long) > 8 * copying._BLOCK
    assert copying._ends(tokenizer, long) == [len(tokenizer.decode(long[: i + 1])) for i in range(len(long))]
    top = np.asarray([*ids[1:], 0])
    assert copying.copied(found, ids, top) == 3
    top[found[0][1] - 2] += 1  # the last token of the first span is predicted wrong
    top[found[1][1] - 1] += 1  # what follows the second one counts for nothing
    assert copying.copied(found, ids, top) == 2


def test_the_held_out_texts_are_measured_short_and_long_and_with_int8_keys(
    llama_bundle: Bundle, llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "TOKENS", 1024)
    measured = evaluation.evaluate(FromBundle(llama_bundle), [], llama_folder, silent)
    assert (measured.runtime, measured.other) == (automatic(), "source")
    assert {name: item.license for name, item in measured.texts.items()} == {
        name: domain.license for name, domain in held_out.DOMAINS.items()
    }
    ways = ["auto", "int8"] if support("native").devices else ["auto"]
    assert [(row.text, row.kv) for row in measured.short()] == [
        (name, "auto") for name in ("prose", "code", "dialogue")
    ]
    assert [(row.text, row.length, row.tokens, row.kv) for row in (*measured.long(), *measured.long("int8"))] == [
        ("prose", 1024, 1024, kv) for kv in ways
    ]
    assert all(row.against and row.against.greedy for row in measured.short())
    counts = [row.against.copies.spans for row in measured.short() if row.against and row.against.copies]
    assert sum(counts) > 3
    for way in ways:
        assert {dtype for row in measured.short(way) for dtype in row.kept} >= ({"int8"} if way == "int8" else set())
    report = QualityReport(measured=measured)
    assert QualityReport.from_json(json.loads(json.dumps(report.to_json()))) == report


def test_the_command_tells_a_bundle_from_itself(
    llama_bundle: Bundle, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(llama_bundle.path)
    assert main(["eval", path, "--text", str(text), "--against", path, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    row = told["rows"][0]
    assert (told["other"], row["text"]) == ("tiny", "text")
    assert (row["against"]["mean_kl"], row["against"]["top1"], row["against"]["greedy"]["same"]) == (0.0, 1.0, 1.0)
    assert row["against"]["perplexity"] == row["perplexity"] > 1
    assert main(["eval", path, "--text", str(text)]) == 0
    table = capsys.readouterr().out
    assert re.search(rf"text +\d+ x 512 +auto +{row['perplexity']:.2f}", table)
    assert "KL" not in table


def test_what_cannot_be_evaluated_is_refused(llama_bundle: Bundle, text: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no such file"):
        evaluation.evaluate(FromBundle(llama_bundle), [tmp_path / "none.txt"], None, silent)
    short = tmp_path / "short.txt"
    short.write_text("The dog sleeps.")
    with pytest.raises(OptionError, match="more than 64 are needed"):
        evaluation.evaluate(FromBundle(llama_bundle), [short], None, silent)
    other = tiny_llama(tmp_path / "other", vocab_size=310)
    with pytest.raises(OptionError, match="a vocabulary of 310 tokens"):
        evaluation.evaluate(FromBundle(llama_bundle), [text], other, silent)
    with pytest.raises(UnsupportedError, match="kv_dtype"):
        evaluation.evaluate(FromBundle(llama_bundle, "onnx", "int8"), [text], None, silent)


def test_ways_that_a_runtime_lacks_are_named(llama_bundle: Bundle, text: Path) -> None:
    found: Measured = evaluation.evaluate(FromBundle(llama_bundle, "onnx"), [text], None, silent)
    assert [row.kv for row in found.rows] == ["auto"]
    assert "offers kv_dtype" in found.refused["int8"]
    assert found.rows[0].against is None
    assert math.isfinite(found.rows[0].perplexity)
