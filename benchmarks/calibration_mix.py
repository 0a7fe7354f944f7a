"""Writes the exporter's built-in calibration text: answers of the default model to the requests below.

    python -m benchmarks.calibration_mix OUT.jsonl

A text that the model wrote itself belongs to nobody else and lies where models like it work. Each line of the result
is {"domain": …, "text": …}. Seeded: the same bundle, runtime and machine write the same text.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import edge
from edge.options import GenerateOptions

MODEL = "smollm2-135m-instruct"
TOKENS = 320
_PROSE = (
    "Write an encyclopedia article about {}, with dates, places and names.",
    "Write the opening pages of a novel that is set around {}.",
    "Write a newspaper report on {}.",
)
_SUBJECTS = (
    "a lighthouse on a northern island", "the history of the printing press", "a river that floods each spring",
    "a football season of a small club", "the life of a forgotten composer", "volcanoes and the people near them",
    "a railway across a desert", "the migration of geese", "a court case over a bridge", "the siege of a harbour town",
    "an album and its reception by critics", "the anatomy of beetles", "a warship of the last century",
    "the election of a mayor", "a recipe that travelled around the world", "the discovery of a comet",
)  # fmt: skip
_CODE = (
    "Write a Python program with comments that {}.",
    "Write a C function that {} and explain it.",
    "Write JavaScript code that {}, with an example of its output.",
)
_TASKS = (
    "parses a CSV file and sums a column", "implements a queue with two stacks", "finds the shortest path in a graph",
    "counts words in a text", "validates an email address", "multiplies two matrices", "reverses a linked list",
    "reads JSON and prints a table",
)  # fmt: skip
_TALK = (
    "Write a dialogue between {} in which prices, dates and quantities are agreed on.",
    "Write a chat of questions and short answers between {}, with exact numbers.",
)
_PEOPLE = (
    "a customer and a clerk in a hardware shop", "a teacher and a pupil who learns fractions", "two train travellers",
    "a doctor and a patient", "a support agent and a user of a phone", "a landlord and a tenant",
    "two engineers planning a bridge", "a cook and a supplier", "a librarian and a visitor", "a pilot and the tower",
    "a bank adviser and a student", "two farmers at a market",
)  # fmt: skip


def requests() -> Iterator[tuple[str, str]]:
    """(domain, request), the domains in turns so that a beginning of the text holds all of them."""
    kinds = {"prose": (_PROSE, _SUBJECTS), "code": (_CODE, _TASKS), "dialogue": (_TALK, _PEOPLE)}
    lists = {
        domain: [form.format(subject) for subject in subjects for form in forms]
        for domain, (forms, subjects) in kinds.items()
    }
    for index in range(max(map(len, lists.values()))):
        for domain, wanted in lists.items():
            if index < len(wanted):
                yield domain, wanted[index]


def main() -> int:
    out = Path(sys.argv[1])
    with edge.load(MODEL) as pipeline, out.open("w", encoding="utf-8", newline="\n") as file:
        for seed, (domain, wanted) in enumerate(requests()):
            options = GenerateOptions(max_tokens=TOKENS, temperature=0.7, top_p=0.95, seed=seed)
            found = pipeline.complete(wanted, options)
            file.write(json.dumps({"domain": domain, "text": found.text}, ensure_ascii=False) + "\n")
            file.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
