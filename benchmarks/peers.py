"""Other engines' files as sources of logits for `benchmarks.fidelity`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime

Logits = npt.NDArray[np.float32]


def ortgenai_model(folder: Path) -> Callable[[list[int]], Logits]:
    """The graph of an ONNX Runtime GenAI folder without a past. One that gives the last logits only is refused."""
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_inputs()]
    config = json.loads((folder / "genai_config.json").read_text())["model"]["decoder"]
    empty = np.zeros((1, config["num_key_value_heads"], 0, config["head_size"]), np.float32)

    def run(ids: list[int]) -> Logits:
        inputs = {"input_ids": np.asarray([ids], np.int64), "attention_mask": np.ones((1, len(ids)), np.int64)}
        feed = {name: inputs.get(name, empty) for name in names}
        logits: Logits = session.run(["logits"], feed)[0][0]
        if len(logits) != len(ids):
            raise SystemExit(f"{folder}: gives logits of {len(logits)} tokens; build it without pruned logits")
        return logits

    return run


def recorded(path: Path, parts: list[list[int]]) -> Callable[[list[int]], Logits]:
    """Logits that a worker wrote for these chunks, [chunks, ids, vocab]."""
    logits = np.load(path, mmap_mode="r")
    return lambda ids: np.asarray(logits[parts.index(ids)])
