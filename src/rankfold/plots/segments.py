"""Segments as pictures: strips of labels next to the truth, durations, posteriors over time, piano rolls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rankfold.analysis.segmentation import segments_of
from rankfold.data.frames import UNKNOWN
from rankfold.data.music import NUM_KEYS, key_name
from rankfold.errors import DataError, DomainError
from rankfold.plots.picture import new_figure, save_figure

# Those of Okabe and Ito, which colour-blind readers tell apart; then paler and darker ones.
_FIRST = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
UNMATCHED, ABSENT = "0.75", "white"  # a state that stands for no label; a frame without one
_LISTED = 24  # labels in a legend


def colour_of(label: int) -> Any:
    """The colour of a label, the same in every picture: seven told apart, then paler and darker ones in turn."""
    if label < 0:
        return ABSENT if label == UNKNOWN else UNMATCHED
    from matplotlib.colors import to_rgb

    turn, which = divmod(label, len(_FIRST))
    base = np.array(to_rgb(_FIRST[which]))
    if turn == 0:
        return tuple(base.tolist())
    # 0.55, -0.4, 0.275, -0.2, ...: towards white and towards black in turn, ever closer to the first colour.
    share = (0.55 if turn % 2 else 0.4) / 2 ** ((turn - 1) // 2)
    return tuple((base + ((1 - base) if turn % 2 else -base) * share).tolist())


def plot_strips(
    labelings: Mapping[str, Any],
    path: str | Path,
    *,
    label_names: Sequence[str] | None = None,
    fps: float | None = None,
    title: str = "",
) -> Path:
    """Save one strip of colours for each labelling "t" of the same sequence, the first on top; returns the path.

    Equal labels have equal colours in all strips: match states to labels first (`Matching.apply`). Grey is a state that
    stands for no label, white a frame without one. The axis is in seconds if the frames per second are known.
    """
    rows = {name: _labels(labels, name) for name, labels in labelings.items()}
    if not rows:
        raise DataError("no labellings: nothing to draw. Give {name: labels}.")
    length = len(next(iter(rows.values())))
    for name, labels in rows.items():
        if len(labels) != length:
            raise DataError(f"{name} has {len(labels):,} frames, but the first labelling has {length:,}.")
    scale = _seconds(fps)
    figure, axes = _figure(10, 1.2 + 0.55 * len(rows))
    for i, labels in enumerate(rows.values()):
        _strip(axes, labels, scale, bottom=i - 0.4, height=0.8)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    _time_axis(axes, length, fps)
    _legend(axes, np.unique(np.concatenate(list(rows.values()))).tolist(), label_names)
    return _save(figure, axes, title, path)


def plot_durations(
    labels: Sequence[Any],
    path: str | Path,
    *,
    label_names: Sequence[str] | None = None,
    fps: float | None = None,
    title: str = "",
) -> Path:
    """Save a histogram of the durations of the segments of each label, a panel each on one axis; returns the path.

    `labels` are those of every sequence, "t" each. A segment that a sequence's end may have cut counts as it is.
    """
    durations: dict[int, list[int]] = {}
    for number, row in enumerate(labels):
        for segment in segments_of(_labels(row, f"sequence {number}")):
            durations.setdefault(segment.label, []).append(segment.end - segment.start)
    if not durations:
        raise DataError("no segments: nothing to draw.")
    scale = _seconds(fps)
    shown = sorted(durations, key=lambda label: (-len(durations[label]), label))[:_LISTED]
    longest = max(max(durations[label]) for label in shown)
    # Bins hold equally many whole durations each, or a histogram would have gaps of its own making.
    width = -(-longest // 40)
    edges = (np.arange(-(-longest // width) + 1) * width + 0.5) * scale
    figure, panels = _figure(7, 0.9 + 0.75 * len(shown), rows=len(shown))
    for axes, label in zip(panels, sorted(shown), strict=True):
        lengths = np.array(durations[label])
        axes.hist(lengths * scale, bins=edges, color=colour_of(label))
        axes.axvline(float(np.median(lengths)) * scale, color="0.2", linewidth=1, linestyle=":")
        axes.set_yticks([])
        axes.spines[["top", "right", "left"]].set_visible(False)
        said = f"{_name(label, label_names)}\n{len(lengths):,} segments, median {np.median(lengths) * scale:g}"
        axes.text(1.02, 0.5, said, transform=axes.transAxes, va="center", fontsize=8)
    panels[-1].set_xlabel("duration in frames" if fps is None else "duration in seconds")
    if fps is None:  # half a frame is no duration
        panels[-1].xaxis.get_major_locator().set_params(integer=True)
    left_out = len(durations) - len(shown)
    note = f"\nthe {len(shown)} labels with most segments; {left_out} more are not shown" if left_out else ""
    return _save(figure, panels[0], title + note, path)


def plot_frame_posterior(
    posterior: Any,
    path: str | Path,
    *,
    truth: Any = None,
    label_names: Sequence[str] | None = None,
    fps: float | None = None,
    title: str = "",
    num_shown: int = 32,
) -> Path:
    """Save a heat map of p(state | sequence), "t z", time across; above it a strip of the true labels if given.

    Only the `num_shown` states with most mass have a row, by their mean time; the picture says what share of the
    posterior they hold. Returns the path.
    """
    table = np.asarray(posterior, dtype=np.float64)
    if table.ndim != 2 or 0 in table.shape or not np.isfinite(table).all() or (table < 0).any() or not table.any():
        raise DataError(f'the posterior has shape {table.shape}; probabilities "t z" were expected, none NaN.')
    if num_shown < 1:
        raise DomainError(f"num_shown is {num_shown}, but must be at least 1.")
    scale = _seconds(fps)
    length, num_states = table.shape
    used = table.sum(0)
    shown = np.argsort(-used, kind="stable")[:num_shown]
    shown = shown[used[shown] > 0]
    shown = shown[np.argsort(np.arange(length) @ table[:, shown] / used[shown], kind="stable")]
    figure, axes = _figure(10, 2 + 0.16 * len(shown))
    extent = (0, length * scale, len(shown) - 0.5, -0.5)
    image = axes.imshow(
        table[:, shown].T, aspect="auto", cmap="Blues", vmin=0, vmax=1, extent=extent, interpolation="none"
    )
    axes.set_yticks(range(len(shown)), [str(z) for z in shown.tolist()], fontsize=7)
    axes.set_ylabel(f"{len(shown)} of {num_states:,} states")
    if truth is not None:
        labels = _labels(truth, "truth")
        if len(labels) != length:
            raise DataError(f"the truth has {len(labels):,} frames, but the posterior {length:,}.")
        height = 0.06 * len(shown)
        _strip(axes, labels, scale, bottom=-0.5 - 1.5 * height, height=height)
        axes.set_ylim(len(shown) - 0.5, -0.5 - 1.5 * height)
        axes.text(-0.005, 1, "truth ", transform=axes.transAxes, ha="right", va="top", fontsize=8)
    _time_axis(axes, length, fps)
    figure.colorbar(image, ax=axes, label="p(state | sequence)", pad=0.01)
    if truth is not None:
        _legend(axes, np.unique(labels).tolist(), label_names, below=True)
    if len(shown) < np.count_nonzero(used):
        title += f"\nthese states hold {used[shown].sum() / used.sum():.1%} of the posterior"
    return _save(figure, axes, title, path)


def plot_piano_roll(
    roll: Any, path: str | Path, *, states: Any = None, fps: float | None = None, title: str = ""
) -> Path:
    """Save the keys that sound at each step, "t 88", pitch upwards, over the colours of the states "t" if given.

    Only the range of keys that sound, and a little more, is shown; the C of every octave is named. Returns the path.
    """
    notes = np.asarray(roll) != 0
    if notes.ndim != 2 or notes.shape[1] != NUM_KEYS or not len(notes):
        raise DataError(f'the piano roll has shape {notes.shape}; "t {NUM_KEYS}" was expected: music.')
    scale = _seconds(fps)
    sounding = np.flatnonzero(notes.any(0))
    low, high = (int(sounding[0]), int(sounding[-1])) if len(sounding) else (0, NUM_KEYS - 1)
    figure, axes = _figure(10, 4.5)
    if states is not None:
        labels = _labels(states, "states")
        if len(labels) != len(notes):
            raise DataError(f"{len(labels):,} states, but the piano roll has {len(notes):,} steps.")
        _strip(axes, labels, scale, bottom=low - 2, height=high - low + 4, alpha=0.35)
        _legend(axes, np.unique(labels).tolist(), None, alpha=0.35)
    for key in sounding.tolist():
        runs = [s for s in segments_of(notes[:, key].astype(np.int64)) if s.label]
        bars = [(s.start * scale, (s.end - s.start) * scale) for s in runs]
        axes.broken_barh(bars, (key - 0.42, 0.84), facecolors="0.15", linewidth=0)
    octaves = [key for key in range(NUM_KEYS) if low - 2 <= key <= high + 2 and key % 12 == 3]
    axes.set_yticks(octaves, [key_name(key) for key in octaves])
    axes.set_ylim(low - 2, high + 2)
    axes.spines[["top", "right"]].set_visible(False)
    _time_axis(axes, len(notes), fps, unit="step")
    return _save(figure, axes, title, path)


def _labels(given: Any, name: str) -> Any:
    labels = np.asarray(given)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels):
        raise DataError(f"{name}: {labels.dtype} of shape {labels.shape}; one whole number per frame was expected.")
    return labels.astype(np.int64)


def _seconds(fps: float | None) -> float:
    """How long a frame is on the axis."""
    if fps is not None and not 0 < fps < float("inf"):
        raise DomainError(f"fps is {fps}, but must be above 0: frames per second.")
    return 1.0 if fps is None else 1 / fps


def _figure(width: float, height: float, *, rows: int = 0) -> tuple[Any, Any]:
    figure = new_figure(width, height)
    if rows:
        return figure, figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
    return figure, figure.add_subplot()


def _strip(axes: Any, labels: Any, scale: float, *, bottom: float, height: float, alpha: float = 1.0) -> None:
    found = segments_of(labels)
    bars = [(s.start * scale, (s.end - s.start) * scale) for s in found]
    colours = [colour_of(s.label) for s in found]
    axes.broken_barh(bars, (bottom, height), facecolors=colours, alpha=alpha, linewidth=0)


def _time_axis(axes: Any, length: int, fps: float | None, *, unit: str = "frame") -> None:
    axes.set_xlim(0, length * _seconds(fps))
    axes.set_xlabel(unit if fps is None else "seconds")


def _name(label: int, names: Sequence[str] | None) -> str:
    if label < UNKNOWN:
        return f"state {-2 - label}, no label"
    return str(names[label]) if names is not None and label < len(names) else str(label)


def _legend(
    axes: Any, labels: Sequence[int], names: Sequence[str] | None, *, below: bool = False, alpha: float = 1.0
) -> None:
    """Colours and names outside the axes; one entry for all states without a label, and none for no label."""
    from matplotlib.patches import Patch

    named = [label for label in labels if label >= 0]
    entries = [
        Patch(facecolor=colour_of(label), alpha=alpha, linewidth=0, label=_name(label, names))
        for label in named[:_LISTED]
    ]
    if len(named) > _LISTED:
        entries.append(Patch(color="none", label=f"and {len(named) - _LISTED} more"))
    if any(label < UNKNOWN for label in labels):
        entries.append(Patch(color=UNMATCHED, label="no label"))
    if below:
        axes.figure.legend(handles=entries, frameon=False, fontsize=8, loc="outside lower center", ncols=6)
        return
    place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "ncols": 1 if len(entries) <= 8 else 2}
    axes.legend(handles=entries, frameon=False, fontsize=8, borderaxespad=0, **place)


def _save(figure: Any, axes: Any, title: str, path: str | Path) -> Path:
    if title.strip():
        axes.set_title(title.strip(), fontsize=11)
    return save_figure(figure, path)
