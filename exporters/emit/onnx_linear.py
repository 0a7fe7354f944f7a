"""The linears of the ONNX emitter: MatMulNBits over the payload, siblings as one, activations as asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, assert_never

import numpy as np
from onnx import TensorProto

from edge.graph import Graph
from edge.ops import Linear, Op, Weight
from edge.payload import Run, Scheme
from edge.weights import Weights
from exporters.emit.onnx_model import CONTRIB, Model, Span

# How a linear's input is taken: "int8" a group of 32 at a time (accuracy level 4), "int16" as the sum of two int8
# parts (as exact as float to four digits at little more than int8's cost), "float" as it is (accuracy level 0).
Precision = Literal["int8", "int16", "float"]
Choose = Callable[[Weight], Precision]  # of the linear of a weight


class Initializers:
    """Initializers of a model that are ranges of the payload."""

    def __init__(self, model: Model, weights: Weights) -> None:
        self.model = model
        self.weights = weights

    def span(self, tensor: str) -> str:
        """A tensor of the payload as it is."""
        info = self.weights.info(tensor)
        self.model.spans[tensor] = Span(info.dtype, info.shape, info.start)
        return tensor

    def floats(self, tensor: str) -> str:
        """The tensor as float32: ONNX Runtime folds the Cast when it loads the model."""
        self.span(tensor)
        if self.model.spans[tensor].dtype == "F32":
            return tensor
        return self.model.once("Cast", (tensor,), f"{tensor}.f32", to=TensorProto.FLOAT)

    def shift(self, name: str, scales: str, offsets: str, scheme: Scheme) -> str:
        """affine's correction [rows, groups]: offset + zero * scale, so that codes may be taken as symmetric."""
        zero = self.model.constant(f"zero.{scheme.zero}", scheme.zero, np.float32)
        scaled = self.model.once("Mul", (scales, zero), f"{name}.scaled")
        return self.model.once("Add", (offsets, scaled), f"{name}.shift")


class Stored:
    """Matrices of one scheme whose like parts lie side by side in the payload, as initializers of one of `rows` rows.

    `runs` are the siblings' only runs, or one run of a weight; `bias` is the first sibling's, which the others follow.
    """

    def __init__(self, initializers: Initializers, runs: Sequence[Run], bias: Weight | None) -> None:
        self._initializers = initializers
        self._bias = bias
        self._first = runs[0].name
        self.scheme = initializers.weights.schemes[self._first]
        self.rows, self.columns = sum(run.shape[0] for run in runs), runs[0].shape[1]
        self.name = "+".join(run.name for run in runs)

    def span(self, part: str, shape: tuple[int, ...]) -> str:
        """A part seen as [rows, *shape]. The name tells the shape: a tied embedding has its codes seen in two ways."""
        info = self._initializers.weights.info(f"{self._first}.{part}")
        name = f"{self.name}.{part}.{'x'.join(map(str, shape))}"
        self._initializers.model.spans[name] = Span(info.dtype, (self.rows, *shape), info.start)
        return name

    def floats(self, part: str, groups: int) -> str:
        span = self.span(part, (groups,))
        return self._initializers.model.once("Cast", (span,), f"{span}.f32", to=TensorProto.FLOAT)

    def bias(self) -> str:
        """The biases as one vector, "" where there are none."""
        if self._bias is None:
            return ""
        name = f"{self.name}.bias"
        info = self._initializers.weights.info(self._bias.name)
        self._initializers.model.spans[name] = Span("F32", (self.rows,), info.start)
        return name


class LinearEmitter:
    """Emits linears into a model. Values are [1, tokens, width]."""

    def __init__(self, graph: Graph, initializers: Initializers, precision: Choose) -> None:
        self._siblings = {op.output: group for group in graph.siblings for op in group}
        self._initializers = initializers
        self._model = initializers.model
        self._schemes, self._runs = initializers.weights.schemes, initializers.weights.runs
        self._precision = precision

    def emit(self, op: Op[Linear]) -> None:
        """Emit the siblings of an op as one matrix where their payload lies side by side, then take it apart."""
        group = self._siblings[op.output]
        if op is not group[0]:
            return
        if len(group) == 1 or not self._adjacent(group):
            for each in group:
                self._one(each)
            return
        whole = "+".join(each.output for each in group)
        runs = [self._runs[each.attrs.weight.name][0] for each in group]
        stored = Stored(self._initializers, runs, op.attrs.bias)
        self._multiply(op.inputs[0], stored, self._precision(op.attrs.weight), whole)
        sizes = [each.attrs.weight.shape[0] for each in group]
        split = self._model.constant(f"split.{sizes}", sizes)
        self._model.add("Split", (whole, split), [each.output for each in group], axis=-1)

    def _adjacent(self, group: Sequence[Op[Linear]]) -> bool:
        """Whether siblings are quantized alike, are taken alike, and each part of one ends where the next begins."""
        weights, biases = [op.attrs.weight for op in group], [op.attrs.bias for op in group]
        scheme = self._schemes[weights[0].name]
        alike = {
            (self._schemes[weight.name], bias is None, self._precision(weight))
            for weight, bias in zip(weights, biases, strict=True)
        }
        if len(alike) > 1 or scheme is None or any(len(self._runs[weight.name]) > 1 for weight in weights):
            return False
        columns = [[f"{weight.name}.{part}" for weight in weights] for part in scheme.parts(1, 1)]
        columns.append([bias.name for bias in biases if bias])
        infos = [[self._initializers.weights.info(name) for name in column] for column in columns]
        return all(a.stop == b.start for column in infos for a, b in pairwise(column))

    def _one(self, op: Op[Linear]) -> None:
        """One linear: a multiplication for each run of its weight, side by side or added up."""
        weight, bias, x = op.attrs.weight, op.attrs.bias, op.inputs[0]
        runs, precision = self._runs[weight.name], self._precision(weight)
        if len(runs) == 1:
            self._multiply(x, Stored(self._initializers, runs, bias), precision, op.output)
            return
        by_rows = self._initializers.weights.axes[weight.name] == "rows"
        products = []
        for index, run in enumerate(runs):
            taken = x if by_rows else self._columns(x, run)
            products.append(f"{op.output}/run{index}")
            self._multiply(taken, Stored(self._initializers, [run], None), precision, products[-1])
        terms = [self._model.add("Concat", products, f"{op.output}/rows", axis=-1)] if by_rows else products
        self._add_up([*terms, self._initializers.floats(bias.name)] if bias else terms, op.output)

    def _columns(self, x: str, run: Run) -> str:
        """The columns of x that a run multiplies; shared by the linears that read the same value."""
        name = f"{x}/columns.{run.start}.{run.stop}"
        if not self._model.has(name):
            bounds = [self._model.constant(f"bound.{n}", [n]) for n in (run.start, run.stop, 2)]
            self._model.add("Slice", (x, *bounds), name)
        return name

    def _multiply(self, x: str, stored: Stored, precision: Precision, output: str) -> None:
        """x [1, tokens, columns] · storedᵀ + bias, as the value `output`."""
        scheme, columns = stored.scheme, stored.columns
        if scheme is None:
            self._multiply_floats(x, stored, output)
            return
        groups = scheme.groups(columns)
        whole = precision != "int16" and scheme.kind != "affine"
        product = output if whole else f"{output}/product"
        taken = self._two_parts(x, scheme, columns) if precision == "int16" else x
        match scheme.kind:
            case "sym" | "affine":
                zeros = ""
            case "zp":
                zeros = stored.span("zeros", (-(-groups // 2),))
            case _:
                assert_never(scheme.kind)
        codes = stored.span("codes", (groups, scheme.group * scheme.bits // 8))
        inputs = [taken, codes, stored.floats("scales", groups), zeros, "", stored.bias() if whole else ""]
        while not inputs[-1]:
            inputs.pop()
        self._model.add("MatMulNBits", inputs, product, CONTRIB, K=columns, N=stored.rows, bits=scheme.bits,
                        block_size=scheme.group, accuracy_level=0 if precision == "float" else 4)  # fmt: skip
        if not whole:
            terms = [self._sum_parts(product) if precision == "int16" else product]
            terms += [self._correction(x, scheme, stored)] if scheme.kind == "affine" else []
            terms += [stored.bias()] if stored.bias() else []
            self._add_up(terms, output)

    def _add_up(self, terms: list[str], output: str) -> None:
        if len(terms) == 1:
            self._model.add("Identity", terms, output)
            return
        for index, term in enumerate(terms[1:], 2):
            name = output if index == len(terms) else f"{output}/sum.{index}"
            terms[0] = self._model.add("Add", (terms[0], term), name)

    def _correction(self, x: str, scheme: Scheme, stored: Stored) -> str:
        """affine: the sums of x over each group times what taking the codes as symmetric has left out."""
        groups = scheme.groups(stored.columns)
        scales, offsets = stored.floats("scales", groups), stored.floats("offsets", groups)
        shift = self._initializers.shift(stored.name, scales, offsets, scheme)
        transposed = self._model.once("Transpose", (shift,), f"{stored.name}.shift.t", perm=[1, 0])
        sums = self._group_sums(x, scheme, stored.columns)
        return self._model.add("MatMul", (sums, transposed), f"{stored.name}/correction")

    def _two_parts(self, x: str, scheme: Scheme, columns: int) -> str:
        """x [1, tokens, columns] → [2, tokens, columns]: x as the int8 kernel rounds it, and what the rounding lost."""
        name, add, constant = f"{x}/two.{scheme.group}", self._model.add, self._model.constant
        if self._model.has(name):
            return name
        groups = self._grouped(x, scheme, columns, name)
        largest = add("ReduceMax", (add("Abs", (groups,), f"{name}/abs"), constant("axis.last", [-1])), f"{name}/max")
        step = add("Div", (largest, constant("int8.top", 127, np.float32)), f"{name}/scaled")
        step = add("Max", (step, constant("smallest", 1e-30, np.float32)), f"{name}/step")
        codes = add("Round", (add("Div", (groups, step), f"{name}/codes"),), f"{name}/rounded")
        high = add("Mul", (codes, step), f"{name}/high")
        both = add("Concat", (high, add("Sub", (groups, high), f"{name}/low")), f"{name}/both", axis=0)
        if columns % scheme.group == 0:
            return add("Reshape", (both, constant("flat", [0, 0, -1])), name)
        flat = add("Reshape", (both, constant("flat", [0, 0, -1])), f"{name}/flat")
        return add("Slice", (flat, *(constant(f"bound.{n}", [n]) for n in (0, columns, 2))), name)

    def _sum_parts(self, product: str) -> str:
        return self._model.add("ReduceSum", (product, self._model.constant("axis.first", [0])), f"{product}/both")

    def _group_sums(self, x: str, scheme: Scheme, columns: int) -> str:
        """Sums of x over each group, [1, tokens, groups]; shared by the linears that read the same value."""
        name = f"{x}/sums.{scheme.group}"
        if self._model.has(name):
            return name
        groups = self._grouped(x, scheme, columns, name)
        return self._model.add("ReduceSum", (groups, self._model.constant("axis.last", [-1])), name, keepdims=0)

    def _grouped(self, x: str, scheme: Scheme, columns: int, name: str) -> str:
        """x as [1, tokens, groups, group], its last group padded with zeros."""
        groups, constant = scheme.groups(columns), self._model.constant
        lacking = groups * scheme.group - columns
        if lacking:
            x = self._model.add("Pad", (x, constant(f"pads.{lacking}", [0, 0, 0, 0, 0, lacking])), f"{name}/padded")
        shape = constant(f"groups.{groups}.{scheme.group}", [1, -1, groups, scheme.group])
        return self._model.add("Reshape", (x, shape), f"{name}/blocks")

    def _multiply_floats(self, x: str, stored: Stored, output: str) -> None:
        floats = self._initializers.floats(stored.name)
        matrix = self._model.once("Transpose", (floats,), f"{stored.name}.t", perm=[1, 0])
        bias = stored.bias()
        product = self._model.add("MatMul", (x, matrix), f"{output}/product" if bias else output)
        if bias:
            self._model.add("Add", (product, bias), output)
