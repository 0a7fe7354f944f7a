"""What the evaluators share: the weights, the pool of keys and values, and the step."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from runtimes.torch.kv import Pool
from runtimes.torch.matrix import Matrix, Rows, Stack
from runtimes.torch.step import Step


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """The weights of a Graph by name, as its ops use them. A norm's vector has its offset in it.

    `chosen` is how many experts a token takes, by the name of their gates.
    """

    vectors: dict[str, Tensor]
    matrices: dict[str, Matrix]
    rows: dict[str, Rows]
    stacks: dict[str, Stack]
    chosen: dict[str, int]

    @property
    def nbytes(self) -> int:
        """Bytes on the device; what two uses share counts once for each."""
        tables = (self.matrices, self.rows, self.stacks)
        return sum(item.nbytes for table in tables for item in table.values()) + sum(
            vector.nbytes for vector in self.vectors.values()
        )


@dataclass(frozen=True, slots=True)
class State:
    weights: ModelWeights
    pool: Pool
    step: Step
