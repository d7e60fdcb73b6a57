"""What models share whose hidden path is an ordinary chain, of states or of ranks. Read next: `models/hmm.py`."""

from __future__ import annotations

from typing import Protocol, TypeVar

from torch import Tensor

from rankfold.data.batch import Batch
from rankfold.decoding.query import PathQuery, Values
from rankfold.models.sequence_model import HasEmission, SequenceModel
from rankfold.numerics.precision import Precision
from rankfold.recursions import chain
from rankfold.recursions.chain.potentials import ChainPotentials
from rankfold.recursions.ladder import Arithmetic


class HasInitial(HasEmission, Protocol):
    """Parts with a distribution of the first hidden value."""

    @property
    def log_initial(self) -> Tensor: ...  # "z"


ChainParts = TypeVar("ChainParts", bound=HasInitial)


class ChainModel(SequenceModel[ChainParts, ChainPotentials, Tensor]):
    """Models that emit `ChainPotentials`; a stream carries the distribution of the next hidden value."""

    of: Values = "states"

    def log_z(
        self, potentials: ChainPotentials, arithmetic: Arithmetic = "scaled", precision: Precision = "float32"
    ) -> Tensor:  # "b"
        return chain.log_z(potentials, arithmetic, precision)

    def carry(self, potentials: ChainPotentials, parts: ChainParts | None = None) -> Tensor:  # "b z"
        return chain.carry(potentials)

    def log_next(self, parts: ChainParts, batch: Batch | None) -> Tensor:  # "b z"
        return parts.log_initial[None] if batch is None else self.carry(self.potentials(batch, parts=parts))

    def query(self, potentials: ChainPotentials) -> PathQuery:
        return PathQuery(potentials, potentials.transition.shape[0], of=self.of)
