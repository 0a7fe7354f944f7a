"""The manifest's sum of itself: "manifest_sha256" is the SHA-256 of its own text, with zeros in the place of the sum.

So a manifest in which a value was changed (another end token, two graphs swapped) is told from the one that the export
wrote, by any program that can find 64 digits in a file. It does not keep out someone who computes the sum anew: what
comes from elsewhere is pinned by the sum of the whole file, in a catalogue.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

KEY = "manifest_sha256"
_ZEROS = "0" * 64
_SUM = re.compile(rf'("{KEY}"\s*:\s*")([0-9a-f]{{64}})(?=")')


def seal(data: Mapping[str, Any]) -> str:
    """A manifest's JSON text, with its sum; the same data give the same text."""
    blank = json.dumps({**data, KEY: _ZEROS}, indent=1, sort_keys=True) + "\n"
    return _SUM.sub(lambda found: found[1] + _digest(blank), blank)


def is_sealed(text: str) -> bool:
    """Whether a manifest's text holds one sum of itself, and it is right."""
    found = _SUM.findall(text)
    return len(found) == 1 and _digest(_SUM.sub(rf"\g<1>{_ZEROS}", text)) == found[0][1]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
