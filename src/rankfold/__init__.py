"""Structured latent-variable models with very large state spaces, and exact inference."""

from rankfold.errors import DataError, DomainError, ShapeError, UnsupportedError
from rankfold.numerics.scaled import Scaled
from rankfold.operators import Banded, Dense, LowRank, Operator, RowScaled, Sum
from rankfold.recursions import chain
from rankfold.recursions.potentials import ChainPotentials

__version__ = "0.1.0"
