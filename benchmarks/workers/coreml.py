"""One Core ML package in a fresh process; prints seconds and the most memory, as JSON.

    python -m benchmarks.workers.coreml BUNDLE write|check

`write` makes the package of a folder that has a payload and its manifest, in contexts of 512 and 2,048; `check` reads
it back and compares every weight.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from edge import artefacts, coreml_interface
from edge.bundle import MANIFEST, Bundle, read_manifest
from edge.memory import peak_memory
from exporters.emit.coreml import coreml_target, limits, toolkit


def main(folder: str, step: str) -> None:
    bundle = Bundle(Path(folder), read_manifest(Path(folder) / MANIFEST))
    start = time.perf_counter()
    if step == "write":
        toolkit.load()
        start = time.perf_counter()  # importing coremltools is not part of it
        functions = coreml_interface.functions(coreml_target.CONTEXTS)
        coreml_target.write_package(bundle, functions, limits.wide(bundle.graph, None))
    else:
        artefacts.find("coreml").check(bundle)
    print(json.dumps({"seconds": time.perf_counter() - start, "peak_bytes": peak_memory()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
