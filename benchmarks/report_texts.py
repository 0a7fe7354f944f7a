"""Writes the texts of the quality report that ship with the exporter, from the published data sets.

    python -m benchmarks.report_texts SGD_FOLDER WIKITEXT.txt OUT_FOLDER

SGD_FOLDER is `test/` of the Schema-Guided Dialogue data set: of each of its first eleven files the first dialogues with
many digits are taken. WIKITEXT.txt is the test set of WikiText-2 with its raw tokens: its beginning is taken, and the
marks of its tokenization are undone.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks import wikitext

SIZE = 40_000  # characters: 8,192 tokens of a large vocabulary and some more
_DIGITS, _LEAST = 1 / 40, 600  # share of digits, and characters of a dialogue
_FILES, _EACH = 11, 5  # files, and dialogues of each


def dialogues(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("dialogues_*.json"))[:_FILES]:
        found = 0
        for item in json.loads(path.read_text(encoding="utf-8")):
            text = "\n".join(f"{turn['speaker'].title()}: {turn['utterance']}" for turn in item["turns"])
            if len(text) >= _LEAST and len(re.findall(r"\d", text)) >= _DIGITS * len(text):
                yield text
                found += 1
            if found == _EACH:
                break


def main() -> int:
    folder, raw, out = map(Path, sys.argv[1:])
    whole = "\n\n".join(dialogues(folder)) + "\n"
    for name, text in {
        "prose": wikitext.beginning(raw, SIZE),
        "dialogue": whole[: whole.rindex("\n", 0, SIZE) + 1],
    }.items():
        (out / f"{name}.txt").write_text(text, encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
