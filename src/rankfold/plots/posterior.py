"""The posterior of one sequence as a picture: states down, positions across.

Read next: `decoding/posterior.py`, which computes what is shown.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankfold.errors import UnsupportedError, expect_absent

PNG_MARK, SVG_MARK = b"Software\0rankfold", '<svg data-drawn-by="rankfold"'  # how pictures say who drew them


def require_matplotlib() -> None:
    """Raise, saying what to install, where pictures cannot be drawn."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise UnsupportedError("a picture needs matplotlib.\n  Install it: pip install matplotlib.") from error


def expect_picture(path: str | Path) -> None:
    """Raise unless a picture may be saved there: nothing is there, or a PNG or SVG that rankfold drew."""
    try:
        with Path(path).open("rb") as stream:
            head = stream.read(512)
    except OSError:
        head = b""
    if not ((head.startswith(b"\x89PNG") and PNG_MARK in head) or head.startswith(SVG_MARK.encode())):
        expect_absent(path, "a picture (.png, or the .svg of a tree) that rankfold drew")


def save_figure(figure: Any, path: str | Path) -> Path:
    """Save a figure of matplotlib; its folders are made. A picture of ours is replaced, any other file refused."""
    path = Path(path)
    expect_picture(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, metadata={"Software": "rankfold"} if path.suffix.lower() == ".png" else None)
    return path


def plot_posterior(
    posterior: Tensor, path: Tensor, file: Path, *, truth: Tensor | None = None, title: str = "", num_shown: int = 32
) -> Path:
    """Save a heat map of p(z_t | x) for one sequence, with the best path (and the true one) drawn over it.

    posterior "t z", path "t", truth "t". Only the `num_shown` states with the most mass get a row; the caption
    says how much of the posterior they hold.
    """
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    posterior = posterior.detach().cpu()
    num_positions = posterior.shape[0]
    used = posterior.sum(0)
    shown = used.topk(min(num_shown, len(used))).indices
    when = (posterior[:, shown] * torch.arange(num_positions)[:, None]).sum(0) / used[shown]
    shown = shown[when.argsort()]  # by expected position, so that the path runs down the picture
    row = {int(state): i for i, state in enumerate(shown)}
    share = float(used[shown].sum() / used.sum())

    figure = Figure(figsize=(10, 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    image = axes.imshow(posterior[:, shown].T.numpy(), aspect="auto", cmap="Blues", vmin=0, vmax=1, origin="upper")
    for states, marker, colour, label in (
        (truth, "o", "tab:orange", "true state"),
        (path, "x", "black", "best path (Viterbi)"),
    ):
        if states is None:
            continue
        points = [(t, row[int(state)]) for t, state in enumerate(states) if int(state) in row]
        face = "none" if marker == "o" else colour
        axes.scatter(
            [t for t, _ in points],
            [i for _, i in points],
            s=42 if marker == "o" else 18,
            marker=marker,
            facecolors=face,
            edgecolors=None if marker == "x" else colour,
            linewidths=1.2,
            label=f"{label} ({len(points)} of {num_positions} in view)",
        )
    axes.set_yticks(range(len(shown)), [str(int(state)) for state in shown], fontsize=7)
    axes.set_xlabel("position")
    axes.set_ylabel(f"the {len(shown)} most used of {len(used):,} states")
    axes.set_title(f"{title}\nthese states hold {share:.1%} of the posterior", fontsize=11)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, frameon=False, fontsize=9)
    figure.colorbar(image, ax=axes, label="p(state | sequence)", pad=0.01)
    return save_figure(figure, file)
