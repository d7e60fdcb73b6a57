"""The picture of a sweep: what was measured is on it, with the line that was fitted."""

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.steps.scaling import plot_scaling
from rankfold.data.brackets import parse_tree
from rankfold.errors import DataError, UnsupportedError
from rankfold.plots.trees import save_tree
from tests.plots.test_learning import figures

__all__ = ["figures"]
CURVES: list[dict[str, Any]] = [
    {"code": "rankfold", "precision": "tf32", "sizes": [10, 100], "ms": [2.0, 20.0], "exponent": 1.0, "factor": 0.2},
    {"code": "reference", "precision": "tf32", "sizes": [10, 20], "ms": [3.0, 12.0], "exponent": 2.0, "factor": 0.03},
    {"code": "rankfold", "precision": "bf16", "sizes": [50], "ms": [4.0], "exponent": None, "factor": None},
]


def test_points_lines_and_exponents(tmp_path: Path, figures: list[Any]) -> None:
    path = plot_scaling("states", CURVES, tmp_path / "new" / "a.png", title="a sweep")
    assert path.read_bytes().startswith(b"\x89PNG")
    (axes,) = figures[0].axes
    shown = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()]
    ours, reference, alone = ((curve["sizes"], curve["ms"]) for curve in CURVES)
    for found, (sizes, ms) in zip(shown, [ours, ours, reference, reference, alone], strict=True):  # line, points
        assert found == (sizes, pytest.approx(ms))
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == [
        "rankfold, tf32: time ~ size^1.00",
        "reference, tf32: time ~ size^2.00",
        "rankfold, bf16",
    ]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert (axes.get_xlabel(), axes.get_title()) == ("states", "a sweep")


def test_nothing_to_draw(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(DataError, match="nothing to draw"):
        plot_scaling("states", [], tmp_path / "a.png")
    assert not list(tmp_path.iterdir())


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UnsupportedError, match="pip install matplotlib"):
        plot_scaling("states", CURVES, tmp_path / "a.png")


def test_orders_have_colours_of_their_own_and_the_reference_is_dashed(tmp_path: Path, figures: list[Any]) -> None:
    names = ["rankfold, rank space", "rankfold, state space", "reference"]
    plot_scaling("states", [{**CURVES[0], "code": name} for name in names], tmp_path / "a.png")
    lines = figures[0].axes[0].get_lines()[::2]  # the fitted ones
    assert [line.get_linestyle() for line in lines] == ["-", "-", "--"]
    assert lines[0].get_color() != lines[1].get_color()
    assert lines[2].get_color() == lines[0].get_color()


@pytest.mark.parametrize("name", ["a.png", "a.svg", "a.pdf"])
def test_pictures_replace_nobodys_file(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\x89PNG mine, not of rankfold")
    with pytest.raises(DataError, match=f"{name} exists and is not a picture"):
        plot_scaling("states", CURVES, tmp_path / name)
    with pytest.raises(DataError, match=f"{name} exists and is not a picture"):
        save_tree(parse_tree("(S (A a) (B b))"), tmp_path / name)
    assert (tmp_path / name).read_bytes() == b"\x89PNG mine, not of rankfold"


def test_pictures_of_ours_are_drawn_anew(tmp_path: Path) -> None:
    plot_scaling("states", CURVES, tmp_path / "a.png")
    plot_scaling("states", CURVES[:1], tmp_path / "a.png", title="another")
    for tree in ("(S (A a) (B b))", "(S (A a) (B c))"):
        save_tree(parse_tree(tree), tmp_path / "a.svg")
    assert ">c<" in (tmp_path / "a.svg").read_text()
