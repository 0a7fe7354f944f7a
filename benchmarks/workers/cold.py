"""One cold start, from the interpreter to the first token's text; prints the seconds of each stage as JSON.

    python -m benchmarks.workers.cold BUNDLE PROMPT SPAWNED

SPAWNED is the parent's `time.monotonic()` when it started this process; the clock is the system's, so that starting
Python counts too. Only `time`, `sys` and `json` are imported before the stages begin.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

_stages: dict[str, float] = {}


def main() -> None:
    bundle, prompt, spawned = sys.argv[1], sys.argv[2], float(sys.argv[3])
    _stages["start Python"] = time.monotonic() - spawned
    edge = _timed("import edge", _import)("edge")
    pipeline_module = _timed("import edge.pipeline", _import)("edge.pipeline")
    _timed("import onnxruntime", _import)("onnxruntime")
    opened = _timed("open the bundle, check files", edge.open_bundle)(bundle)
    calls = {"open_tokenizer": "tokenizer", "read_templates": "chat template", "open_runtime": "session"}
    for name, stage in calls.items():
        setattr(pipeline_module, name, _timed(stage, getattr(pipeline_module, name)))
    with pipeline_module.Pipeline(opened) as pipeline:
        stream = pipeline.stream(prompt, edge.GenerateOptions(max_tokens=8))
        _timed("prefill and first token", next)(stream)
        total = time.monotonic() - spawned
        _stages["the rest"] = total - sum(_stages.values())
        print(json.dumps({**_stages, "total": total}))
        stream.close()


def _import(name: str) -> Any:
    __import__(name)
    return sys.modules[name]


def _timed(stage: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any, **options: Any) -> Any:
        start = time.monotonic()
        try:
            return call(*arguments, **options)
        finally:
            _stages[stage] = time.monotonic() - start

    return run


if __name__ == "__main__":
    main()
