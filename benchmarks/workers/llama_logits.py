"""Writes the logits of a GGUF file under llama.cpp for chunks of ids.

python -m benchmarks.workers.llama_logits MODEL.gguf IDS.npy OUT.npy     ids [chunks, n], out float32 [chunks, n, vocab]
"""

from __future__ import annotations

import sys

import llama_cpp
import numpy as np


def main(path: str, ids_path: str, out: str) -> None:
    ids = np.load(ids_path)
    model = llama_cpp.Llama(path, n_ctx=ids.shape[1], n_batch=ids.shape[1], logits_all=True, verbose=False)
    logits = np.lib.format.open_memmap(out, "w+", np.float32, (*ids.shape, model.n_vocab()))
    for index, chunk in enumerate(ids):
        model.reset()
        model.eval(chunk.tolist())
        logits[index] = model.scores[: len(chunk)]
    logits.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
