"""How layers keep keys and values, for a kind of op that is not known to keep any."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from edge.errors import UnsupportedError
from edge.graph import build
from edge.ops import OPS, Attention
from edge.ops.op import OpKind, same_width
from runtimes.kv_dtypes import kv_dtypes
from tests.specs import small_spec


@dataclass(frozen=True, slots=True)
class Recall:
    kind: ClassVar[str] = "recall"
    layer: int


def test_an_unknown_op_that_keeps_tokens_is_refused_where_rounding_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, Recall, OpKind(3, same_width, attends=lambda attrs: int(attrs.layer)))
    graph = build(small_spec(windows=(None,)))
    ops = tuple(replace(op, attrs=Recall(0)) if isinstance(op.attrs, Attention) else op for op in graph.ops)
    bundle: Any = SimpleNamespace(spec=graph.spec, graph=replace(graph, ops=ops), weights=SimpleNamespace(read=None))
    assert kv_dtypes(bundle, "float32") == ["float32"]
    with pytest.raises(UnsupportedError, match=r"what recall \(/layers.0/attn/mix\) keeps of each token"):
        kv_dtypes(bundle, "float16")
