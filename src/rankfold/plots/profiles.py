"""What a model learned in one picture: its states by use and choice of words, or the symbols of a grammar by use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rankfold.analysis.hidden_chain import HiddenChain
from rankfold.analysis.named_states import best_words, most_used
from rankfold.analysis.state_profiles import Use, word_entropies
from rankfold.plots.picture import add_grid, new_figure, save_figure

NUM_NAMED = 40  # states whose word is written next to them, where there is room
BLUE, RED, GREEN = "#0072B2", "#D55E00", "#009E73"  # of Okabe and Ito
NUM_YIELDS, WIDTH = 3, 72  # examples of a symbol, and their letters


def plot_states(chain: HiddenChain, use: Use, path: str | Path, *, words: Sequence[str], counted: str) -> Path:
    """Save a picture: a dot for each state in use, the most used named by their most probable word."""
    share = use.share
    there = share > 0
    many = np.exp(word_entropies(chain))
    figure = new_figure(9, 6)
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.scatter(share[there], many[there], s=14, color=BLUE, alpha=0.45, linewidths=0, zorder=2)
    named = most_used(use, NUM_NAMED)
    says = best_words(chain, named, words)
    axes.scatter(share[named], many[named], s=18, color=RED, linewidths=0, zorder=3)
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
    add_grid(axes)
    figure.suptitle(f"{chain.num_values:,} {chain.of}; a word names one of the most used", fontsize=11)
    _name(figure, axes, [(float(share[state]), float(many[state]), says[state]) for state in named])
    return save_figure(figure, path)


def _name(figure: Any, axes: Any, points: list[tuple[float, float, str]]) -> None:
    """Write a word next to each point, unless it would cover one that is there already."""
    figure.canvas.draw()
    taken: list[Any] = []
    for x, y, word in points:
        style = {"fontsize": 8, "parse_math": False, "annotation_clip": False}
        text = axes.annotate(_shortened(word, 16), (x, y), (5, 3), textcoords="offset points", **style)
        box = text.get_window_extent()
        if any(box.overlaps(other) for other in taken):
            text.remove()
        else:
            taken.append(box)


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "\u2026"


def plot_symbols(symbols: Sequence[Mapping[str, Any]], path: str | Path, *, counted: str) -> Path:
    """Save bars of use, nonterminals above preterminals, each with its most frequent yields."""
    kinds = [[s for s in symbols if "rules" in s], [s for s in symbols if "rules" not in s]]
    kinds = [kind for kind in kinds if kind]
    figure = new_figure(9, 1.2 + 0.34 * sum(map(len, kinds)) + 0.5 * len(kinds))
    panels = figure.subplots(len(kinds), 1, squeeze=False, height_ratios=[len(kind) + 1 for kind in kinds])[:, 0]
    for axes, kind in zip(panels, kinds, strict=True):
        spans = "rules" in kind[0]
        places = range(len(kind))
        axes.barh(places, [s["use"] for s in kind], color=BLUE if spans else GREEN, height=0.7)
        axes.set_yticks(places, [s["symbol"] for s in kind])
        axes.invert_yaxis()
        most = max(s["use"] for s in kind) or 1.0
        axes.set_xlim(0, 3.2 * most)
        axes.set_xticks([])
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.set_title("share of all spans" if spans else "share of all words", loc="left", fontsize=9)
        for place, symbol in zip(places, kind, strict=True):
            examples = " | ".join(text for text, _ in symbol["yields"][:NUM_YIELDS])
            label = f"{symbol['use']:.1%}  {_shortened(examples, WIDTH)}"
            axes.text(symbol["use"] + 0.02 * most, place, label, va="center", fontsize=8, parse_math=False)
    figure.suptitle(f"the most used symbols in {counted}", fontsize=11, parse_math=False)
    return save_figure(figure, path)
