"""`python -m benchmarks crosstask FOLDER --out crosstask.npz`: CrossTask's videos prepared as the low-rank paper does.

    rankfold train --recipe lhsmm-1024-16-crosstask --data crosstask.npz --out run
    rankfold evaluate run --data crosstask.npz --split test

The paper's figure is nats per video: nats per frame, as printed there, times the frames per video printed here.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rankfold.data.crosstask import COMPONENTS, GROUPS, read_crosstask, write_npz
from rankfold.data.frame_files import SPLITS


def main(given: Sequence[str]) -> int:
    """Write the file; 0."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks crosstask",
        description=__doc__.partition(": ")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="the published folder: tasks, videos, annotations")
    parser.add_argument("--features", type=Path, help="folder of VIDEO.npy (default: features in the folder)")
    parser.add_argument("--groups", type=int, nargs="+", default=GROUPS, help="columns of each kind of features")
    parser.add_argument("--components", type=int, default=COMPONENTS, help="of each group (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the validation videos (default: %(default)s)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help=".npz")
    args = parser.parse_args(given)
    frames = read_crosstask(args.folder, args.features, groups=args.groups, components=args.components, seed=args.seed)
    write_npz(frames, args.out)
    assert frames.splits is not None
    for split in SPLITS:
        lengths = [len(x) for x, own in zip(frames.features, frames.splits, strict=True) if own == split]
        mean = f"{sum(lengths) / len(lengths):,.1f} frames per video" if lengths else "no videos"
        print(f"{split}: {len(lengths):,} videos, {sum(lengths):,} frames, {mean}")
    return 0
