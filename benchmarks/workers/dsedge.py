"""dsedge as a speed worker: a bundle through the public pipeline, with its bookkeeping and greedy sampling."""

from __future__ import annotations

import sys
import time

import edge
from benchmarks.workers.loop import serve
from edge.kv import KvDtype
from edge.pipeline import load
from edge.runtime import Runtime, support


def main(bundle: str, options: edge.RuntimeOptions) -> None:
    support(options.runtime)  # imports the backend, which is not to count as loading
    start = time.perf_counter()
    with load(bundle, options) as pipeline:
        loaded = time.perf_counter() - start

        def measure(prompt: list[int], new: int) -> tuple[float, float]:
            pipeline.reset()
            generate = edge.GenerateOptions(max_tokens=new + 1, ignore_eos=True)
            start = time.perf_counter()
            times = [time.perf_counter() for _ in pipeline.tokens(prompt, generate)]
            assert len(times) == new + 1
            return times[0] - start, times[-1] - times[0]

        name = f"dsedge {edge.__version__} ({pipeline.runtime.name})"
        reserved = pipeline.runtime.kv_bytes
        row = reserved / kv_rows(pipeline.runtime)
        serve(name, measure, load_s=loaded, kv_bytes=reserved, kv_row_bytes=row)


def kv_rows(runtime: Runtime) -> int:
    """Rows of keys that are reserved over all layers: slots, and behind an extent room for a forward's new rows."""
    spec, layout = runtime.spec, runtime.layout
    scratch = layout.chunk if runtime.capabilities.extents else 0
    return layout.sequences * sum(layout.rings[group].slots + scratch for group in spec.layer_groups)


if __name__ == "__main__":
    model, threads, context, runtime, kv_dtype = sys.argv[1:]
    dtype: KvDtype = kv_dtype  # type: ignore[assignment]  # the options check it
    main(
        model,
        edge.RuntimeOptions(runtime=runtime, threads=int(threads), context=int(context), sequences=1, kv_dtype=dtype),
    )
