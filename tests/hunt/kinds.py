"""The list of kinds. A kind that cannot run here (no CUDA, no file system) leaves itself out."""

from __future__ import annotations

from tests.hunt.kind import Kind
from tests.hunt.reader_models import Settings

ALL: tuple[type[Kind], ...] = (Settings,)


def kinds(device: str = "cpu") -> list[Kind]:
    """Every kind that runs on the device."""
    return [kind(device) for kind in ALL]


def kind_named(name: str, device: str = "cpu") -> Kind:
    """The kind of that name."""
    return next(kind for kind in kinds(device) if kind.name == name)
