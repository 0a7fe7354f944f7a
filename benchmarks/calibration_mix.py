"""Writes the exporter's built-in calibration text: articles, and answers of the default model to the requests below.

    python -m benchmarks.calibration_mix WIKITEXT.txt OUT.jsonl

WIKITEXT.txt is the validation set of WikiText-2 with its raw tokens: the beginning of each article is taken, and the
marks of its tokenization are undone (exporters/calibration/mix.LICENSE). Each line of the result is
{"domain": …, "text": …}. Seeded: the same bundle, runtime and machine write the same answers.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from itertools import chain, pairwise
from pathlib import Path

import edge
from benchmarks import wikitext
from edge.options import GenerateOptions

MODEL = "smollm2-135m-instruct"
TOKENS = 320  # of an answer
ARTICLE = 1_500  # characters of one, at most
_TITLE = re.compile(r"^ = [^=].* = \n", re.MULTILINE)
_ANSWERS = {"prose": 12, "code": 24, "dialogue": 24}
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


def answers() -> Iterator[tuple[str, str]]:
    """(domain, text) of each answer that is kept."""
    left = dict(_ANSWERS)
    with edge.load(MODEL) as pipeline:
        for seed, (domain, wanted) in enumerate(requests()):
            if left[domain]:
                left[domain] -= 1
                options = GenerateOptions(max_tokens=TOKENS, temperature=0.7, top_p=0.95, seed=seed)
                yield domain, pipeline.complete(wanted, options).text


def articles(path: Path) -> Iterator[tuple[str, str]]:
    """(domain, text) of the beginning of each article, whole paragraphs."""
    text = wikitext.read(path)
    starts = [found.start() for found in _TITLE.finditer(text)]
    for start, stop in pairwise([*starts, len(text)]):
        article = text[start:stop]
        yield "encyclopedia", article[: article.rindex("\n", 0, ARTICLE) + 1].strip()


def main() -> int:
    articles_of, out = map(Path, sys.argv[1:])
    with out.open("w", encoding="utf-8", newline="\n") as file:
        for domain, text in chain(articles(articles_of), answers()):
            file.write(json.dumps({"domain": domain, "text": text}, ensure_ascii=False) + "\n")
            file.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
