"""One context policy, measured in a process of its own: what it costs, and what the model still knows. Prints JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import edge
from benchmarks.endurance import status
from edge.errors import PromptTooLongError
from edge.kv import row_bytes
from edge.pipeline import Pipeline
from edge.session import Session

NEEDLE = " The secret number of the lighthouse keeper is {number}."
QUESTION = " Question: what is the secret number of the lighthouse keeper? Answer: the secret number is"
NUMBERS = (4831, 7296)
_ANSWER = 5  # tokens in which the number has to come


def main(bundle: str, policy: str, asked: dict[str, Any]) -> dict[str, Any]:
    options = edge.RuntimeOptions(
        runtime=asked["runtime"], threads=1, context=None if policy == "spill" else asked["context"], policy=policy,
        sequences=1,
    )  # fmt: skip
    with edge.load(bundle, options) as pipeline:
        ids = pipeline.tokenizer.encode(asked["text"])
        found: dict[str, Any] = {"needles": {}}
        for length in asked["lengths"]:
            for place in asked["places"]:
                found["needles"][f"{length} {place}"] = needles(pipeline, ids, length, place)
        found.update(reading(pipeline, ids[: asked["tokens"]], asked["context"], asked["new"]))
    return found


def needles(pipeline: Pipeline, ids: Sequence[int], length: int, place: float) -> int | None:
    """How many of the numbers come back that stood at a share of so many tokens; None where they do not fit."""
    encode, found = pipeline.tokenizer.encode, 0
    for index, number in enumerate(NUMBERS):
        needle, question = encode(NEEDLE.format(number=number)), encode(QUESTION)
        text = ids[1000 * index :][: length - len(needle) - len(question)]
        at = int(len(text) * place)
        prompt = [*text[:at], *needle, *text[at:], *question]
        pipeline.reset()
        try:
            run = pipeline.tokens(prompt, edge.GenerateOptions(max_tokens=_ANSWER, temperature=0))
            found += str(number) in pipeline.tokenizer.decode([event.id for event in run])
        except PromptTooLongError:
            return None
    return found


def reading(pipeline: Pipeline, ids: Sequence[int], context: int, new: int) -> dict[str, Any]:
    """Perplexity, rates in tokens a second of processor time, and bytes, of reading a text and writing `new` tokens.

    Of tokens behind the context alone; None for a policy that ends there.
    """
    pipeline.reset()
    session = Session(pipeline.runtime)
    total, counted, seconds, fed = 0.0, 0, 0.0, 0
    while len(session.tokens) < len(ids) - 1 and (room := session.cache.room(len(ids) - 1 - len(session.tokens))):
        start = len(session.tokens)
        began = time.process_time()
        logits = session.step(ids[start : start + room], "all")
        if start >= context:
            seconds, fed = seconds + time.process_time() - began, fed + room
        shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
        targets = np.asarray(ids[start + 1 : start + 1 + room])
        lost = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(room), targets]
        total, counted = total + float(lost[max(0, context - start) :].sum()), counted + max(0, start + room - context)
    counted = max(0, len(session.tokens) - context)
    decoded = writing(session, new) if fed else None
    memory = status()
    held = sum(
        len(set(session.cache.rings[group].blocks())) * 64 * row_bytes(pipeline.bundle.spec.kv_groups[group], dtype)
        for group, dtype in zip(pipeline.bundle.spec.layer_groups, pipeline.runtime.kv_dtypes, strict=True)
    )
    return {
        "tokens": len(session.tokens),
        "perplexity": float(np.exp(total / counted)) if counted else None,
        "prefill": fed / seconds if fed else None,
        "decode": decoded,
        "held": held,
        "own": memory.get("RssAnon", 0),
        "file": memory.get("RssShmem", 0) + memory.get("RssFile", 0),
        "dropped": session.dropped,
    }


def writing(session: Session, new: int) -> float:
    """Tokens a second of processor time, one by one."""
    session.step([0])
    began = time.process_time()
    for _ in range(new):
        session.step([0])
    return new / (time.process_time() - began)


if __name__ == "__main__":
    model, name, path = sys.argv[1:]
    print(json.dumps(main(model, name, json.loads(Path(path).read_text(encoding="utf-8")))))
