"""Non-negative matrices that are never written out: dense, low rank, banded, sums, scaled rows."""

from rankfold.operators.banded import Banded
from rankfold.operators.binary import BinaryOperator, Branch
from rankfold.operators.binary_cpd import BinaryCPD
from rankfold.operators.binary_dense import BinaryDense, BinaryMatricised
from rankfold.operators.dense import Dense
from rankfold.operators.kronecker import Kronecker
from rankfold.operators.low_rank import LowRank
from rankfold.operators.product import Product
from rankfold.operators.protocol import MaxOperator, Operator
from rankfold.operators.rank_space import RankSpace, rank_space
from rankfold.operators.row_scaled import RowScaled
from rankfold.operators.sum import Sum
from rankfold.operators.without_diagonal import WithoutDiagonal

__all__ = [
    "Banded",
    "BinaryCPD",
    "BinaryDense",
    "BinaryMatricised",
    "BinaryOperator",
    "Branch",
    "Dense",
    "Kronecker",
    "LowRank",
    "MaxOperator",
    "Operator",
    "Product",
    "RankSpace",
    "RowScaled",
    "Sum",
    "WithoutDiagonal",
    "rank_space",
]
