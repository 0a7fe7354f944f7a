"""Storage for keys and values, apart from the backends that use it."""

from __future__ import annotations

import pytest

from edge.kv import plan_layout
from runtimes.buffers import KvPool
from tests.specs import small_spec


@pytest.mark.parametrize("sequences", [2**16, 2**40])
def test_more_than_the_system_gives_is_a_memory_error(sequences: int) -> None:
    """2⁵⁰ bytes, beyond what the system can address, and more than an offset in a map can say."""
    spec = small_spec(context=2**30)
    with pytest.raises(MemoryError, match=r"\d{16,} bytes of keys and values"):
        KvPool(spec, plan_layout(spec, 2**30, sequences=sequences))
