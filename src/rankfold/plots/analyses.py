"""Pictures of analyses: singular values, entropies of rules, use and purity of states, losses by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rankfold.analysis.cluster_purity import Purity
from rankfold.analysis.matrix_ranks import Spectrum
from rankfold.analysis.rule_entropies import KINDS, RuleEntropies
from rankfold.analysis.state_profiles import Floats, Use
from rankfold.analysis.text_losses import Group
from rankfold.plots.picture import add_grid, new_figure, save_figure
from rankfold.plots.profiles import BLUE, GREEN, RED

COLOURS = (BLUE, RED, GREEN, "#CC79A7")
FEW = 20  # states that a picture counts one by one
SMALLEST = 1e-12  # singular values below it are rounding, and left out


def plot_spectra(spectra: Mapping[str, Spectrum], path: str | Path, *, threshold: float) -> Path:
    """Save the singular values of each matrix, falling, with the threshold above which they are counted."""
    figure = new_figure(8, 5)
    axes = figure.subplots()
    for (name, found), colour in zip(spectra.items(), COLOURS, strict=False):
        shown = found.values[found.values > SMALLEST]
        size = f"{found.shape[0]:,} x {found.shape[1]:,}"
        label = f"{name}, {size}: rank {found.rank(threshold):,} of at most {found.bound:,}"
        axes.plot(np.arange(1, len(shown) + 1), shown, color=colour, linewidth=1.8, label=label)
    axes.axhline(threshold, color="0.35", linewidth=1, linestyle=(0, (5, 3)), label=f"threshold {threshold:g}")
    axes.set_yscale("log")
    axes.set_xlabel("number of the singular value")
    axes.set_ylabel("singular value")
    add_grid(axes)
    axes.legend(fontsize=8, frameon=False)
    figure.suptitle("singular values", fontsize=11)
    return save_figure(figure, path)


def plot_rules(found: RuleEntropies, path: str | Path, *, num_nonterminals: int) -> Path:
    """Save the histogram of the rules' entropies, and of each kind of children its share by parent."""
    figure = new_figure(10, 4.2)
    left, right = figure.subplots(1, 2)
    left.hist(found.entropy, bins=min(30, max(5, len(found.parents) // 2)), color=BLUE, edgecolor="white")
    mean = float(found.entropy.mean())
    left.axvline(mean, color=RED, linewidth=1.5, label=f"mean {mean:.2f} nats")
    left.set_xlabel("entropy of p(left, right | parent), nats")
    left.set_ylabel("parents")
    left.legend(fontsize=8, frameon=False)
    right.boxplot([found.kinds[:, k] for k in range(4)], tick_labels=KINDS, medianprops={"color": RED})
    for place, mean in enumerate(found.kinds.mean(0), 1):
        right.text(place, 1.02, f"{mean:.2f}", ha="center", fontsize=9)
    right.set_ylim(0, 1.1)
    right.set_xlabel("children: N nonterminal, P preterminal; the mean above")
    right.set_ylabel("p(kind | parent)")
    for axes in (left, right):
        add_grid(axes)
    figure.suptitle(f"rules of {len(found.parents):,} of {num_nonterminals:,} parents", fontsize=11)
    return save_figure(figure, path)


def plot_use(use: Use, path: str | Path, *, of: str, counted: str, purity: Purity | None = None) -> Path:
    """Save the share of positions that the most used states have, and with clusters the purity of states."""
    figure = new_figure(10 if purity is not None else 6, 4.2)
    panels: Any = figure.subplots(1, 1 if purity is None else 2, squeeze=False)[0]
    falling: Floats = -np.sort(-use.share)
    number = np.arange(1, len(falling) + 1)
    panels[0].plot(number, np.cumsum(falling), color=BLUE, linewidth=1.8, label="this model")
    panels[0].plot(number, number / len(number), color="0.35", linewidth=1, linestyle=(0, (5, 3)), label="equal use")
    if len(number) > FEW:
        panels[0].set_xscale("log")
        panels[0].xaxis.set_major_formatter("{x:,.0f}")
        panels[0].xaxis.set_minor_formatter("")
    panels[0].set_ylim(0, 1.02)
    panels[0].set_xlabel(f"so many of the most used {of}")
    panels[0].set_ylabel("share of use")
    panels[0].legend(fontsize=8, frameon=False)
    if purity is not None:
        panels[1].hist(purity.purity, bins=20, range=(0, 1), weights=use.share, color=GREEN, edgecolor="white")
        panels[1].axvline(purity.mean, color=RED, linewidth=1.5, label=f"mean by use {purity.mean:.2f}")
        panels[1].axvline(purity.chance, color="0.35", linewidth=1, linestyle=(0, (5, 3)), label="one state for all")
        panels[1].set_xlabel("purity: share of a state's words in one cluster")
        panels[1].set_ylabel("share of use")
        panels[1].legend(fontsize=8, frameon=False)
    for axes in panels:
        add_grid(axes)
    figure.suptitle(f"use of {len(falling):,} {of}: {counted}", fontsize=9, parse_math=False)
    return save_figure(figure, path)


def plot_losses(
    groups: Mapping[str, Sequence[Group]], path: str | Path, *, perplexity: float, is_bound: bool = False
) -> Path:
    """Save the perplexity of each group as a bar, with its share of the text's nats; one panel for each grouping.

    `is_bound`: they are bounds, of perplexities that are lower.
    """
    figure = new_figure(5.5 * len(groups), 4.2)
    panels: Any = figure.subplots(1, len(groups), squeeze=False)[0]
    for axes, (title, found) in zip(panels, groups.items(), strict=True):
        shown = [group for group in found if np.isfinite(group.perplexity)]
        places = range(len(shown))
        axes.bar(places, [group.perplexity for group in shown], color=BLUE, width=0.7)
        axes.set_xticks(places, [group.name for group in shown], rotation=30, ha="right", fontsize=8, parse_math=False)
        values = [group.perplexity for group in shown]
        if values and max(values) > 5 * min(values):
            axes.set_yscale("log")
        total = sum(group.nats for group in found)
        for place, group in zip(places, shown, strict=True):
            share = f"{group.nats / total:.0%}" if np.isfinite(total) else ""
            text = (
                f"{group.perplexity:,.0f}\n{share}" if group.perplexity >= 1000 else f"{group.perplexity:.3g}\n{share}"
            )
            axes.annotate(text, (place, group.perplexity), (0, 3), textcoords="offset points", ha="center", fontsize=8)
        axes.margins(y=0.2)
        axes.axhline(perplexity, color=RED, linewidth=1, label=f"all: {perplexity:,.4g}")
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_ylabel("perplexity")
        axes.legend(fontsize=8, frameon=False)
        add_grid(axes)
    title = "bound of the perplexity" if is_bound else "perplexity"
    figure.suptitle(f"{title}, and below it the share of all nats", fontsize=11)
    return save_figure(figure, path)
