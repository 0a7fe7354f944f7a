"""The license that the package states is the one that lies beside it."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

import edge

ROOT = Path(edge.__file__).parents[1]


def test_the_license_is_the_whole_text_of_the_one_that_the_package_states() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
    # Of https://www.apache.org/licenses/LICENSE-2.0.txt.
    found = hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest()
    assert found == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
    assert not any(item.startswith("License ::") for item in project["classifiers"])  # the expression takes their place
