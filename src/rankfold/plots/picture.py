"""Figures of matplotlib without a window, and pictures as files: only a picture that rankfold drew is replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rankfold.errors import UnsupportedError, expect_absent
from rankfold.files import read_head

PNG_MARK, SVG_MARK = b"Software\0rankfold", '<svg data-drawn-by="rankfold"'  # how pictures say who drew them


def require_matplotlib() -> None:
    """Raise, saying what to install, where pictures cannot be drawn."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise UnsupportedError("a picture needs matplotlib.\n  Install it: pip install matplotlib.") from error


def new_figure(width: float, height: float) -> Any:
    """An empty figure of so many inches, drawn without a window; its parts keep apart from each other."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def add_grid(axes: Any) -> None:
    """A pale grid behind the data, and a frame on two sides alone."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(which="major", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)


def expect_picture(path: str | Path) -> None:
    """Raise unless a picture may be saved there: nothing is there, or a PNG or SVG that rankfold drew."""
    head = read_head(path, 512)
    if not ((head.startswith(b"\x89PNG") and PNG_MARK in head) or head.startswith(SVG_MARK.encode())):
        expect_absent(path, "a picture (.png, or the .svg of a tree) that rankfold drew")


def save_figure(figure: Any, path: str | Path) -> Path:
    """Save a figure of matplotlib; its folders are made. A picture of ours is replaced, any other file refused."""
    path = Path(path)
    expect_picture(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, metadata={"Software": "rankfold"} if path.suffix.lower() == ".png" else None)
    return path
