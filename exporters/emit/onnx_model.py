"""A small builder of ONNX models whose weights are ranges of the payload file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from edge.bundle import WEIGHTS
from edge.safetensors import DTYPE_BYTES

OPSET = 23
CONTRIB = "com.microsoft"
_TYPES = {"U8": TensorProto.UINT8, "F16": TensorProto.FLOAT16, "F32": TensorProto.FLOAT}


@dataclass(frozen=True, slots=True)
class Node:
    """One ONNX node; an empty input name is an input left out."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    domain: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def output(self) -> str:
        return self.outputs[0]


@dataclass(frozen=True, slots=True)
class Span:
    """An initializer that is `count` numbers of the payload file from byte `start` on, seen in shape `shape`."""

    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def stop(self) -> int:
        return self.start + DTYPE_BYTES[self.dtype] * math.prod(self.shape)


@dataclass(slots=True)
class Model:
    """Nodes in order, initializers by name, and typed inputs and outputs. Passes edit `nodes` and `spans`."""

    name: str
    nodes: list[Node] = field(default_factory=list)
    spans: dict[str, Span] = field(default_factory=dict)
    constants: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    inputs: dict[str, tuple[int, tuple[int | str, ...]]] = field(default_factory=dict)
    outputs: dict[str, tuple[int, tuple[int | str, ...]]] = field(default_factory=dict)
    folded: set[str] = field(default_factory=set)

    def add(
        self, op: str, inputs: Sequence[str], output: str | Sequence[str], domain: str = "", **attributes: Any
    ) -> str:
        """Append a node; returns its first output."""
        outputs = (output,) if isinstance(output, str) else tuple(output)
        self.nodes.append(Node(op, tuple(inputs), outputs, domain, attributes))
        return outputs[0]

    def once(self, op: str, inputs: tuple[str, ...], output: str, **attributes: Any) -> str:
        """A node over initializers only, before all others and made once however many ops share it (a tied head)."""
        if output not in self.folded:
            self.nodes.insert(len(self.folded), Node(op, inputs, (output,), "", attributes))
            self.folded.add(output)
        return output

    def has(self, value: str) -> bool:
        """Whether a node makes that value already."""
        return any(value in node.outputs for node in self.nodes)

    def constant(self, name: str, values: Any, dtype: type[Any] = np.int64) -> str:
        """A small constant, shared by name."""
        self.constants[name] = np.asarray(values, dtype)
        return name

    def verify(self) -> None:
        """Raise AssertionError unless each value is defined once and before its uses, and every output exists."""
        known = {"", *self.inputs, *self.spans, *self.constants}
        for node in self.nodes:
            missing = [name for name in node.inputs if name not in known]
            assert not missing, f"{node.op} {node.output} uses {missing[0]} before it is defined"
            twice = known & set(node.outputs) - {""}
            assert not twice, f"{min(twice)} is defined twice"
            known.update(node.outputs)
        assert set(self.outputs) <= known, f"undefined outputs: {set(self.outputs) - known}"

    def prune(self) -> None:
        """Drop nodes whose results nobody uses, and initializers likewise."""
        needed = set(self.outputs)
        kept = []
        for node in reversed(self.nodes):
            if needed & set(node.outputs):
                needed.update(node.inputs)
                kept.append(node)
        self.nodes = kept[::-1]
        self.spans = {name: span for name, span in self.spans.items() if name in needed}
        self.constants = {name: values for name, values in self.constants.items() if name in needed}

    def write(self, path: Path) -> None:
        """Serialize deterministically; the weights stay where they are."""
        self.verify()
        path.write_bytes(self.to_proto().SerializeToString(deterministic=True))

    def to_proto(self) -> onnx.ModelProto:
        nodes = [
            helper.make_node(
                node.op, node.inputs, node.outputs, name=node.output, domain=node.domain or None, **node.attributes
            )
            for node in self.nodes
        ]
        graph = helper.make_graph(
            nodes,
            self.name,
            [helper.make_tensor_value_info(name, *described) for name, described in self.inputs.items()],
            [helper.make_tensor_value_info(name, *described) for name, described in self.outputs.items()],
            [
                *(numpy_helper.from_array(values, name) for name, values in self.constants.items()),
                *(_external(name, span) for name, span in self.spans.items()),
            ],
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)]
        return helper.make_model(graph, opset_imports=opsets, producer_name="dsedge", ir_version=10)


def _external(name: str, span: Span) -> onnx.TensorProto:
    tensor = TensorProto(name=name, data_type=_TYPES[span.dtype], dims=span.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", WEIGHTS), ("offset", span.start), ("length", span.stop - span.start)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor
