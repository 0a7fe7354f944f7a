"""`dsedge eval`: figures against ones that are computed here, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from edge.bundle import Bundle
from edge.cli import main
from edge.errors import NotFoundError, OptionError
from exporters import evaluation, parity
from tests.exporters.tiny import load_reference, tiny_llama


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(" ".join(f"The dog {index} sleeps, and the fox jumps over {index * 7}." for index in range(400)))
    return path


def silent(stage: str, done: float, transfer: object = None) -> None:
    pass


def test_against_its_source_a_bundle_is_as_far_as_torch_says(
    llama_bundle: Bundle, llama_folder: Path, text: Path
) -> None:
    found = evaluation.evaluate(llama_bundle, text, llama_folder, silent)
    parts = evaluation.samples(llama_bundle, text)
    assert (found.samples, found.tokens) == (len(parts), sum(map(len, parts)))
    model, kl, same, losses, source_losses = load_reference(llama_folder), [], [], [], []
    for ids in parts:
        with torch.no_grad():
            a = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
        b = torch.log_softmax(
            torch.from_numpy(parity.run_graph(llama_bundle, ids, exact=False, chunk=256, runtime="auto")).double(), -1
        )
        kl.append((a.exp() * (a - b)).sum(-1)[64:])
        same.append((a.argmax(-1) == b.argmax(-1))[64:].double())
        for into, logits in ((losses, b), (source_losses, a)):
            into.append(-logits[:-1].gather(1, torch.tensor(ids[1:])[:, None]).mean())
    assert found.against is not None
    assert found.against.mean_kl == pytest.approx(float(torch.cat(kl).mean()), rel=1e-3)
    assert found.against.p99_kl == pytest.approx(float(torch.cat(kl).quantile(0.99)), rel=1e-3)
    assert found.against.top1 == pytest.approx(float(torch.cat(same).mean()), abs=2e-3)
    assert found.perplexity == pytest.approx(float(torch.stack(losses).mean().exp()), rel=1e-4)
    assert found.against.perplexity == pytest.approx(float(torch.stack(source_losses).mean().exp()), rel=1e-4)


def test_the_command_tells_a_bundle_from_itself(
    llama_bundle: Bundle, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(llama_bundle.path)
    assert main(["eval", path, "--text", str(text), "--against", path, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["against"]["mean_kl"], told["against"]["top1"]) == (0.0, 1.0)
    assert told["against"]["perplexity"] == told["perplexity"] > 1
    assert main(["eval", path, "--text", str(text)]) == 0
    assert "perplexity" in capsys.readouterr().out


def test_what_cannot_be_evaluated_is_refused(llama_bundle: Bundle, text: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no such file"):
        evaluation.evaluate(llama_bundle, tmp_path / "none.txt", None, silent)
    short = tmp_path / "short.txt"
    short.write_text("The dog sleeps.")
    with pytest.raises(OptionError, match="more than 64 are needed"):
        evaluation.evaluate(llama_bundle, short, None, silent)
    other = tiny_llama(tmp_path / "other", vocab_size=310)
    with pytest.raises(OptionError, match="a vocabulary of 310 tokens"):
        evaluation.evaluate(llama_bundle, text, other, silent)
