"""Structured latent-variable models with very large state spaces, and exact inference.

Names are loaded on first use: importing the package loads no subpackage, and not torch.
"""

from importlib import import_module
from typing import Any

from rankfold.version import __version__ as __version__

_HOMES = {  # module: names; the same for type checkers in __init__.pyi
    "corpora.mapping": "map",
    "decoding.counts": "expected_counts",
    "decoding.entropy": "entropy",
    "decoding.generate": "generate_trees",
    "decoding.k_best": "k_best",
    "decoding.mbr": "mbr",
    "decoding.posterior": "posterior",
    "decoding.prefix": "prefix",
    "decoding.sample": "sample",
    "decoding.segment_table": "segment_table",
    "decoding.viterbi": "viterbi",
    "errors": "DataError DomainError ShapeError UnsupportedError",
    "operators": "Banded BinaryCPD BinaryDense BinaryMatricised Branch Dense LowRank MaxOperator Operator RowScaled "
    "Sum WithoutDiagonal rank_space",
    "recursions": "log_z",
    "recursions.blocks.potentials": "BlockPotentials",
    "recursions.chain.potentials": "ChainPotentials",
    "recursions.segments.potentials": "SegmentPotentials",
    "recursions.tree.potentials": "TreePotentials",
    "run_report.training": "train",
    "training.run_dir": "load",
}
_ROOMS = {
    "callbacks": "training.callbacks",
    "estimators": "estimators",
    "fgg": "fgg",
    "models": "models",
    "online": "decoding.online",
    "recursions": "recursions",
}
_NAMES = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = ["__version__", *_NAMES, *_ROOMS]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        found: Any = import_module(f"rankfold.{_ROOMS[name]}")
    elif name in _NAMES:
        found = getattr(import_module(f"rankfold.{_NAMES[name]}"), name)
    else:
        raise AttributeError(f"module 'rankfold' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
