"""The list of kinds. A new kind adds its class to `ALL`."""

from __future__ import annotations

from tests.hunt.blocks import Blocks
from tests.hunt.chains import Chains
from tests.hunt.estimators import Estimators
from tests.hunt.grammars import Grammars
from tests.hunt.graphs import Graphs
from tests.hunt.kernels import Kernels
from tests.hunt.kind import Kind
from tests.hunt.reader_arrays import ARRAY_KINDS
from tests.hunt.reader_grammars import GRAMMAR_KINDS
from tests.hunt.reader_models import MODEL_KINDS
from tests.hunt.reader_runs import RUN_KINDS
from tests.hunt.reader_text import TEXT_KINDS
from tests.hunt.segments import Segments
from tests.hunt.trees import Trees

ALL: tuple[type[Kind], ...] = (
    Chains,
    Segments,
    Trees,
    Blocks,
    Grammars,
    Estimators,
    Kernels,
    Graphs,
    *TEXT_KINDS,
    *ARRAY_KINDS,
    *MODEL_KINDS,
    *RUN_KINDS,
    *GRAMMAR_KINDS,
)


def kinds(device: str = "cpu") -> list[Kind]:
    """Every kind that runs on the device; files are read on a CPU alone."""
    return [kind(device) for kind in ALL if device in kind.devices and (device == "cpu" or kind.unit != "file")]


def kind_named(name: str, device: str = "cpu") -> Kind:
    """The kind of that name."""
    return next(kind for kind in kinds(device) if kind.name == name)
