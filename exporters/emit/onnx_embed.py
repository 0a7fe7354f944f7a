"""The embedding of the ONNX emitter: the rows of the tokens, gathered from the payload and dequantized."""

from __future__ import annotations

from typing import assert_never

import numpy as np

from edge.ops import Embed, Op
from edge.payload import Run, Scheme
from exporters.emit.onnx_linear import Initializers
from exporters.emit.onnx_model import CONTRIB


class EmbedEmitter:
    """Emits the embedding into a model. Values are [1, tokens, width]."""

    def __init__(self, initializers: Initializers) -> None:
        self._initializers = initializers
        self._model = initializers.model

    def emit(self, op: Op[Embed]) -> None:
        weight, path, scale = op.attrs.weight, op.output, op.attrs.scale
        runs = self._initializers.weights.runs[weight.name]
        if len(runs) == 1:
            x = self._gather(runs[0], "tokens", path)
        elif self._initializers.weights.axes[weight.name] == "columns":
            found = [self._gather(run, "tokens", f"{path}/run{index}") for index, run in enumerate(runs)]
            x = self._model.add("Concat", found, f"{path}/columns", axis=-1)
        else:
            x = self._by_rows(runs, path)
        if scale != 1.0:
            self._model.add("Mul", (x, self._model.constant(f"scale.{scale}", scale, np.float32)), op.output)
        else:
            self._model.add("Identity", (x,), op.output)

    def _by_rows(self, runs: tuple[Run, ...], path: str) -> str:
        """Every run's row for each token, of which the last run that does not begin behind the token counts."""
        add, constant = self._model.add, self._model.constant
        x = ""
        for index, run in enumerate(runs):
            name = f"{path}/run{index}"
            first, last = (
                constant(f"token.{run.start}", run.start),
                constant(f"token.{run.shape[0] - 1}", run.shape[0] - 1),
            )
            inside = add("Sub", ("tokens", first), f"{name}/offset")
            inside = add("Clip", (inside, constant("token.0", 0), last), f"{name}/inside")
            rows = self._gather(run, inside, name)
            if not x:
                x = rows
                continue
            reached = add("GreaterOrEqual", ("tokens", first), f"{name}/reached")
            reached = add("Unsqueeze", (reached, constant("axis.last", [-1])), f"{name}/reached_column")
            x = add("Where", (reached, rows, x), f"{name}/chosen")
        return x

    def _gather(self, run: Run, tokens: str, path: str) -> str:
        """Rows of a stored matrix as float32, the group padding cut off."""
        add, initializers = self._model.add, self._initializers
        scheme, columns = initializers.weights.schemes[run.name], run.shape[1]
        if scheme is None:
            return add("Gather", (initializers.floats(run.name), tokens), f"{path}/rows")
        parts = [initializers.span(f"{run.name}.codes"), tokens, initializers.floats(f"{run.name}.scales")]
        match scheme.kind:
            case "sym" | "affine":
                pass
            case "zp":
                parts.append(initializers.span(f"{run.name}.zeros"))
            case _:
                assert_never(scheme.kind)
        x = add("GatherBlockQuantized", parts, f"{path}/rows", CONTRIB, bits=scheme.bits,
                block_size=scheme.group, gather_axis=0, quantize_axis=1)  # fmt: skip
        if scheme.kind == "affine":
            x = self._shift(run, scheme, x, (tokens, path))
        if columns % scheme.group:
            bounds = [self._model.constant(f"bound.{n}", [n]) for n in (0, columns, 2)]
            x = add("Slice", (x, *bounds), f"{path}/cut")
        return x

    def _shift(self, run: Run, scheme: Scheme, x: str, place: tuple[str, str]) -> str:
        """affine: each group of the rows moved by what taking its codes as symmetric has left out."""
        add, groups, (tokens, path) = self._model.add, scheme.groups(run.shape[1]), place
        scales, offsets = (self._initializers.floats(f"{run.name}.{part}") for part in ("scales", "offsets"))
        shift = self._initializers.shift(run.name, scales, offsets, scheme)
        shift = add("Gather", (shift, tokens), f"{path}/shift")
        split = self._model.constant(f"groups.{groups}.{scheme.group}", [1, -1, groups, scheme.group])
        shift = add("Unsqueeze", (shift, self._model.constant("axis.last", [-1])), f"{path}/shift_column")
        x = add("Add", (add("Reshape", (x, split), f"{path}/grouped"), shift), f"{path}/shifted")
        return add("Reshape", (x, self._model.constant("flat", [0, 0, -1])), f"{path}/flat")
