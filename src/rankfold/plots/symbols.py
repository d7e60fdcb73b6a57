"""The symbols of a grammar as a picture: how often each is used, and what it yields most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankfold.plots.picture import new_figure, save_figure

SPANS, WORDS = "#0072B2", "#009E73"  # of Okabe and Ito
NUM_YIELDS, WIDTH = 3, 72  # examples of a symbol, and their letters


def plot_symbols(symbols: Sequence[Mapping[str, Any]], path: str | Path, *, counted: str) -> Path:
    """Save bars of use, nonterminals above preterminals, each with its most frequent yields."""
    kinds = [[s for s in symbols if "rules" in s], [s for s in symbols if "rules" not in s]]
    kinds = [kind for kind in kinds if kind]
    figure = new_figure(9, 1.2 + 0.34 * sum(map(len, kinds)) + 0.5 * len(kinds))
    panels = figure.subplots(len(kinds), 1, squeeze=False, height_ratios=[len(kind) + 1 for kind in kinds])[:, 0]
    for axes, kind in zip(panels, kinds, strict=True):
        spans = "rules" in kind[0]
        places = range(len(kind))
        axes.barh(places, [s["use"] for s in kind], color=SPANS if spans else WORDS, height=0.7)
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
            short = examples if len(examples) <= WIDTH else examples[: WIDTH - 1] + "\u2026"
            label = f"{symbol['use']:.1%}  {short}"
            axes.text(symbol["use"] + 0.02 * most, place, label, va="center", fontsize=8, parse_math=False)
    figure.suptitle(f"the most used symbols in {counted}", fontsize=11, parse_math=False)
    return save_figure(figure, path)
