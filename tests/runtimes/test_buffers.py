"""Storage for keys and values, apart from the backends that use it."""

from __future__ import annotations

import pytest

from edge.decoder import DecoderSpec, LayerSpec, RopeSpec
from edge.kv import plan_layout
from runtimes.buffers import KvPool


@pytest.mark.parametrize("sequences", [2**16, 2**40])
def test_more_than_the_system_gives_is_a_memory_error(sequences: int) -> None:
    """2⁵⁰ bytes, beyond what the system can address, and more than an offset in a map can say."""
    spec = DecoderSpec(
        family="llama", vocab_size=4, hidden_size=4, intermediate_size=4, heads=1, kv_heads=1, head_dim=4,
        layers=(LayerSpec(),), ropes=(RopeSpec(4, 10_000.0),), context=2**30, norm_eps=1e-5, attention_scale=1.0,
    )  # fmt: skip
    with pytest.raises(MemoryError, match=r"\d{16,} bytes of keys and values"):
        KvPool(spec, plan_layout(spec, 2**30, sequences=sequences))
