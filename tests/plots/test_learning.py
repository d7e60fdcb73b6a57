"""The learning curve: a picture comes out, with what was given on it."""

import sys
from pathlib import Path
from typing import Any

import pytest

from rankfold.errors import DataError, DomainError, UnsupportedError
from rankfold.plots.learning import axis_limits, plot_learning, round_ticks, spread_labels

METRICS: list[dict[str, Any]] = [
    {"update": 0, "train_perplexity": 9000.0, "seconds": 1.0},
    {"update": 300, "valid_perplexity": 240.0},
    {"update": 200, "train_perplexity": 250.0, "valid_perplexity": None},
    {"update": 400, "train_perplexity": float("inf"), "valid_perplexity": 260.0},
    {"update": 100, "train_perplexity": 300.0, "valid_perplexity": 320.0},
    {"event": "saved"},
]


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


def test_curves_hold_the_records_in_order(tmp_path: Path, figures: list[Any]) -> None:
    path = plot_learning(METRICS, tmp_path / "new" / "run.png", title="a run")
    assert path.read_bytes().startswith(b"\x89PNG")
    (axes,) = figures[0].axes
    train, valid, best = (list(zip(*line.get_data(), strict=True)) for line in axes.get_lines())
    assert train == [(0, 9000), (100, 300), (200, 250)]
    assert valid == [(100, 320), (300, 240), (400, 260)]
    assert best == [(300, 240)]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["training", "validation (best 240.0 at update 300)"]
    assert axes.get_yscale() == "log"
    assert figures[0].get_suptitle() == "a run"


def test_baselines_and_usage_are_drawn_and_labelled(tmp_path: Path, figures: list[Any]) -> None:
    path = str(tmp_path / "run.png")
    assert plot_learning(METRICS, path, usage=[1, 4, 0, 1, 2], baselines={"unigram": 640.2, "bigram": 187}) == Path(
        path
    )
    left, right = figures[0].axes
    assert [text.get_text() for text in left.texts] == ["unigram 640", "bigram 187"]
    assert [line.get_ydata()[0] for line in left.get_lines()[-2:]] == [640.2, 187]
    assert list(right.get_lines()[0].get_ydata()) == [0.5, 0.25, 0.125, 0.125]
    assert "effective number of states: 3.4 of 5" in [text.get_text() for text in right.get_legend().get_texts()]
    assert "1 never used" in right.get_xlabel()
    assert (right.get_xscale(), right.get_yscale()) == ("log", "log")


def test_nothing_overlaps(tmp_path: Path, figures: list[Any]) -> None:
    plot_learning(METRICS, tmp_path / "a.png", usage=[3, 1], baselines={"one": 200, "another": 201, "a third": 199})
    left, right = figures[0].axes
    boxes = [text.get_window_extent() for text in left.texts]
    boxes += [axes.get_legend().get_window_extent() for axes in (left, right)]
    boxes += [axes.get_window_extent() for axes in (left, right)]
    assert not any(one.overlaps(two) for i, one in enumerate(boxes) for two in boxes[:i])


@pytest.mark.parametrize("metrics", [METRICS[:1], [{"update": 5, "valid_perplexity": 1.5}]])
def test_one_record_is_enough(tmp_path: Path, metrics: list[dict[str, Any]]) -> None:
    pytest.importorskip("matplotlib")
    assert plot_learning(metrics, tmp_path / "run.png", usage=[1.0]).stat().st_size > 0


def test_bad_input_is_refused_before_a_file_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(DataError, match="none of the 1 records"):
        plot_learning([{"update": 1}], tmp_path / "run.png")
    with pytest.raises(DomainError, match="0 for every state"):
        plot_learning(METRICS, tmp_path / "run.png", usage=[0.0, 0.0])
    assert not list(tmp_path.iterdir())


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UnsupportedError, match="pip install matplotlib"):
        plot_learning(METRICS, tmp_path / "run.png")


def test_limits_leave_out_an_untrained_start() -> None:
    assert axis_limits([9000.0, 300.0, 250.0], []) == pytest.approx((250 / 1.12, 750 * 1.12))
    assert axis_limits([400.0, 300.0, 250.0], [200.0]) == pytest.approx((200 / 1.12, 400 * 1.12))


@pytest.mark.parametrize(
    ("low", "high"), [(1.3, 1.7), (35.1, 46.3), (16, 28), (95, 180), (100, 1000), (80, 12_000), (1, 1e6)]
)
def test_ticks_are_few_and_inside(low: float, high: float) -> None:
    ticks = round_ticks(low, high)
    assert 3 <= len(ticks) <= 8
    assert all(low <= tick <= high for tick in ticks)
    assert ticks == sorted(ticks)


def test_labels_keep_apart() -> None:
    assert spread_labels([0.5, 0.1, 0.51], gap=0.05) == pytest.approx([0.5, 0.1, 0.55])
    assert spread_labels([]) == []
