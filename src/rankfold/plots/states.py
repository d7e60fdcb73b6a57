"""All states of a model in one picture: how often each is used against how many words it chooses from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rankfold.analysis.hidden_chain import HiddenChain
from rankfold.analysis.named_states import best_words, most_used
from rankfold.analysis.state_profiles import Use, word_entropies
from rankfold.plots.picture import new_figure, save_figure

NUM_NAMED = 40  # states whose word is written next to them, where there is room
DOT, NAMED = "#0072B2", "#D55E00"  # of Okabe and Ito


def plot_states(chain: HiddenChain, use: Use, path: str | Path, *, words: Sequence[str], counted: str) -> Path:
    """Save a picture: a dot for each state in use, the most used named by their most probable word."""
    share = use.share
    there = share > 0
    many = np.exp(word_entropies(chain))
    figure = new_figure(9, 6)
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.scatter(share[there], many[there], s=14, color=DOT, alpha=0.45, linewidths=0, zorder=2)
    named = most_used(use, NUM_NAMED)
    says = best_words(chain, named, words)
    axes.scatter(share[named], many[named], s=18, color=NAMED, linewidths=0, zorder=3)
    axes.axvline(1 / chain.num_values, color="0.35", linewidth=1, linestyle=(0, (5, 3)), zorder=1)
    axes.text(1 / chain.num_values, 1.01, "equal share", transform=axes.get_xaxis_transform(), ha="center", fontsize=8)
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    low, high = max(share[there].min(), share.max() / 1e6), share.max()
    axes.set_xlim(low / 1.5, high * 2.2)
    unused = chain.num_values - int((share >= low / 1.5).sum())
    beyond = f"; {unused:,} below a millionth of the most used are not shown" if unused else ""
    axes.set_xlabel(f"use: share of {counted}{beyond}", parse_math=False)
    axes.set_ylabel("words it chooses from: exp(entropy)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(which="major", color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)
    figure.suptitle(f"{chain.num_values:,} {chain.of}; a word names one of the most used", fontsize=11)
    _name(figure, axes, [(float(share[state]), float(many[state]), says[state]) for state in named])
    return save_figure(figure, path)


def _name(figure: Any, axes: Any, points: list[tuple[float, float, str]]) -> None:
    """Write a word next to each point, unless it would cover one that is there already."""
    figure.canvas.draw()
    taken: list[Any] = []
    for x, y, word in points:
        short = word if len(word) <= 16 else word[:15] + "\u2026"
        text = axes.annotate(
            short, (x, y), (5, 3), textcoords="offset points", fontsize=8, parse_math=False, annotation_clip=False
        )
        box = text.get_window_extent()
        if any(box.overlaps(other) for other in taken):
            text.remove()
        else:
            taken.append(box)
