"""Pictures of segments: a picture comes out, with what was given in it, in colours that agree."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankfold.errors import DataError, DomainError, UnsupportedError
from rankfold.plots.segments import (
    UNMATCHED,
    colour_of,
    plot_durations,
    plot_frame_posterior,
    plot_piano_roll,
    plot_strips,
)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every figure that is saved."""
    figure = pytest.importorskip("matplotlib.figure")
    saved: list[Any] = []
    save = figure.Figure.savefig

    def keep(self: Any, *args: Any, **kwargs: Any) -> None:
        saved.append(self)
        save(self, *args, **kwargs)

    monkeypatch.setattr(figure.Figure, "savefig", keep)
    return saved


def bars(collection: Any) -> list[tuple[float, float]]:
    """The left and the right end of each bar."""
    return [(path.get_extents().x0, path.get_extents().x1) for path in collection.get_paths()]


def names(legend: Any) -> list[str]:
    return [text.get_text() for text in legend.get_texts()]


def test_colours_are_apart() -> None:
    pytest.importorskip("matplotlib")
    colours = [colour_of(label) for label in range(35)]
    assert len(set(colours)) == 35
    assert all(0 <= part <= 1 for colour in colours for part in colour)
    assert colour_of(-1) == "white"
    assert colour_of(-2) == colour_of(-9) == UNMATCHED


def test_strips(tmp_path: Path, figures: list[Any]) -> None:
    truth, found = [0, 0, 1, 1, -1, 2], np.array([1, 1, 1, -5, -5, 2])
    path = plot_strips(
        {"truth": truth, "found": found}, tmp_path / "new" / "a.png", label_names=["sit", "walk"], fps=2, title="one"
    )
    assert path.read_bytes().startswith(b"\x89PNG")
    (axes,) = figures[0].axes
    first, second = axes.collections
    assert bars(first) == [(0, 1), (1, 2), (2.5, 3)]  # in seconds; nothing where there is no label
    assert bars(second) == [(0, 1.5), (1.5, 2.5), (2.5, 3)]
    assert first.get_facecolors()[1].tolist() == second.get_facecolors()[0].tolist()  # both walk
    assert first.get_facecolors()[2].tolist() == second.get_facecolors()[2].tolist()
    assert names(axes.get_legend()) == ["sit", "walk", "2", "no label"]
    assert axes.get_xlabel() == "seconds"
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["truth", "found"]
    assert axes.get_ylim() == (1.5, -0.5)  # the first on top
    assert axes.get_title() == "one"


@pytest.mark.parametrize(("fps", "unit"), [(None, "frame"), (1.0, "seconds")])
def test_the_axis_says_its_unit(tmp_path: Path, figures: list[Any], fps: float | None, unit: str) -> None:
    plot_strips({"truth": [0, 1]}, tmp_path / "a.png", fps=fps)
    assert figures[0].axes[0].get_xlabel() == unit
    assert figures[0].axes[0].get_xlim() == (0, 2)


def test_a_legend_says_how_many_it_leaves_out(tmp_path: Path, figures: list[Any]) -> None:
    plot_strips({"states": np.arange(40)}, tmp_path / "a.png")
    assert names(figures[0].axes[0].get_legend())[-1] == "and 16 more"


def test_durations(tmp_path: Path, figures: list[Any]) -> None:
    plot_durations(
        [[0, 0, 0, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0]], tmp_path / "a.png", label_names=["sit", "walk"], fps=4
    )
    panels = figures[0].axes
    heights = [{patch.get_x() + patch.get_width() / 2: patch.get_height() for patch in axes.patches} for axes in panels]
    assert heights[0] == {0.25: 0, 0.5: 0, 0.75: 2, 1.0: 0, 1.25: 1}
    assert heights[1] == {0.25: 1, 0.5: 1, 0.75: 0, 1.0: 0, 1.25: 0}
    assert panels[0].texts[0].get_text() == "sit\n3 segments, median 0.75"
    assert panels[1].get_xlabel() == "duration in seconds"


def test_ticks_of_durations_are_whole_frames(tmp_path: Path, figures: list[Any]) -> None:
    """Also where the longest lasts two frames; in seconds ticks may be anything."""
    for longest in (2, 3, 40):
        plot_durations([[0] * longest + [1]], tmp_path / "a.png")
        assert all(tick == int(tick) for tick in figures[-1].axes[-1].get_xticks())
    plot_durations([[0, 0, 1]], tmp_path / "a.png", fps=10)
    assert any(tick != int(tick) for tick in figures[-1].axes[-1].get_xticks())


def test_every_segment_is_in_a_histogram(tmp_path: Path, figures: list[Any]) -> None:
    lengths = [1, 2, 39, 40, 41, 80, 81, 397]
    plot_durations([[z for z, length in enumerate(lengths) for _ in range(length)]], tmp_path / "a.png")
    assert [sum(patch.get_height() for patch in axes.patches) for axes in figures[0].axes] == [1] * len(lengths)
    plot_durations([np.arange(30)], tmp_path / "a.png")
    assert len(figures[1].axes) == 24
    assert "6 more are not shown" in figures[1].axes[0].get_title()


def test_posterior(tmp_path: Path, figures: list[Any]) -> None:
    posterior = np.array([[0.1, 0.9, 0, 0.0], [0.6, 0.4, 0, 0], [0.8, 0.1, 0, 0.1]])
    plot_frame_posterior(posterior, tmp_path / "a.png", truth=[1, 0, 0], num_shown=2, title="one")
    axes = figures[0].axes[0]
    (image,) = axes.images
    assert image.get_array().tolist() == posterior[:, [1, 0]].T.tolist()  # by time
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["1", "0"]
    assert axes.get_title() == "one\nthese states hold 96.7% of the posterior"
    assert axes.get_ylabel() == "2 of 4 states"
    assert bars(axes.collections[0]) == [(0, 1), (1, 3)]
    assert axes.get_ylim()[1] < -0.5  # room for the truth
    assert names(figures[0].legends[0]) == ["0", "1"]
    plot_frame_posterior(posterior, tmp_path / "all.png")
    assert figures[1].axes[0].get_ylabel() == "3 of 4 states"  # one has no mass anywhere
    assert figures[1].axes[0].get_title() == ""  # nothing was left out


def test_piano_roll(tmp_path: Path, figures: list[Any]) -> None:
    roll = np.zeros((6, 88), dtype=bool)
    roll[1:3, 39] = roll[5, 39] = roll[:, 51] = True
    plot_piano_roll(roll, tmp_path / "a.png", states=[7, 7, 7, 8, 8, 8])
    axes = figures[0].axes[0]
    ground, low, high = axes.collections
    assert bars(ground) == [(0, 3), (3, 6)]
    assert bars(low) == [(1, 3), (5, 6)]
    assert bars(high) == [(0, 6)]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["C4", "C5"]
    assert axes.get_ylim() == (37, 53)
    assert (axes.get_xlabel(), names(axes.get_legend())) == ("step", ["7", "8"])
    plot_piano_roll(np.zeros((2, 88)), tmp_path / "silent.png")
    assert figures[1].axes[0].get_ylim() == (-2, 89)


def test_what_cannot_be_drawn(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    for draw, named in (
        (lambda: plot_strips({}, path), "no labellings"),
        (lambda: plot_strips({"a": [0, 1], "b": [0]}, path), "b has 1 frames, but the first labelling has 2"),
        (lambda: plot_strips({"a": [0.5]}, path), "a: float64"),
        (lambda: plot_durations([], path), "no segments"),
        (lambda: plot_frame_posterior(np.array([[np.nan]]), path), "none NaN"),
        (lambda: plot_frame_posterior(np.ones((2, 1)), path, truth=[0]), "truth has 1 frames, but the posterior 2"),
        (lambda: plot_piano_roll(np.ones((2, 3)), path), r"shape \(2, 3\)"),
        (lambda: plot_piano_roll(np.ones((2, 88)), path, states=[0]), "1 states, but the piano roll has 2"),
    ):
        with pytest.raises(DataError, match=named):
            draw()
    with pytest.raises(DomainError, match="fps is 0"):
        plot_strips({"a": [0]}, path, fps=0)
    with pytest.raises(DomainError, match="num_shown is 0"):
        plot_frame_posterior(np.ones((2, 1)), path, num_shown=0)
    assert not path.exists()


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UnsupportedError, match="pip install matplotlib"):
        plot_strips({"a": [0]}, tmp_path / "a.png")
