"""`python -m benchmarks gpu --out FOLDER`: all that is to be decided on a GPU, in one run of some minutes.

Each part runs in a process of its own with a limit of time, the most important first, and adds its results to
FOLDER/rows.jsonl as they come: a kernel that hangs or breaks costs the rest of its part alone. After every part
FOLDER/decisions.json says which prepared ways are right and faster, as the values of their constants, and which rows
keep their aims. It needs torch, Triton and numpy.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks import fgg, long_chains, long_segments, packed_trees
from benchmarks.steps.aims import ON_H200
from benchmarks.steps.cases import Case, shrink
from benchmarks.steps.tables import frame_cases, grammar_cases
from benchmarks.two_ways import PACKED, PAIRS, SHARED, compare
from rankfold.cli.bench import device_name
from rankfold.errors import UnsupportedError
from rankfold.models.config import FrameConfig

REPEATS = 9
FASTER = 0.98  # of the usual time, at most: what is gained by less is noise
Job = Callable[[], Iterable[dict[str, Any]]]


class Part(NamedTuple):
    """Some rows, and the seconds they may take, at most."""

    seconds: int
    jobs: Callable[[bool], Iterator[tuple[str, Job]]]  # by name; `small`: to try the command


def _packed(*families: str) -> Callable[[bool], Iterator[tuple[str, Job]]]:
    def jobs(small: bool) -> Iterator[tuple[str, Job]]:
        for case in packed_trees.cases(small=small):
            if case.config.family in families:
                yield case.name, partial(compare, case, PACKED, ("tf32", "bf16"), _device(), _repeats(small))

    return jobs


def _segments(small: bool) -> Iterator[tuple[str, Job]]:
    for case in frame_cases():
        if case.config.family in ("hsmm", "lhsmm"):
            yield case.name, partial(_shared, case, small)


def _shared(case: Case, small: bool) -> Iterator[dict[str, Any]]:
    assert isinstance(case.config, FrameConfig)
    window = case.config.num_states * case.config.max_duration
    for record in compare(shrink(case) if small else case, SHARED, ("tf32",), _device(), _repeats(small)):
        yield {**record, "window": window}


def _durations(small: bool) -> Iterator[tuple[str, Job]]:
    rows: list[long_segments.Row] = [(5, None, 4, 6, 6)] if small else long_segments.ROWS
    for row in sorted(rows, key=lambda row: -row[2]):
        yield f"{row[0]} states, durations to {row[2]}", partial(_alone, long_segments.record, row, _repeats(small))


def _alone(record: Callable[..., dict[str, Any]], *given: Any) -> Iterator[dict[str, Any]]:
    yield record(*given)


def _pairs(small: bool) -> Iterator[tuple[str, Job]]:
    for case in grammar_cases():
        if case.config.family in ("npcfg", "lpcfg"):
            given = shrink(case) if small else case
            yield case.name, partial(compare, given, PAIRS, ("tf32", "bf16"), _device(), _repeats(small))


def _grammars_of_ones_own(small: bool) -> Iterator[tuple[str, Job]]:
    for sizes in [(2, 3, 2, 4)] if small else [(30, 60, 4, 40), (5, 8, 4, 40)]:
        yield f"fgg {sizes}", partial(_alone, fgg.record, *sizes)


def _chains(small: bool) -> Iterator[tuple[str, Job]]:
    for row in [("gradient", 1, 40, 3, "dense", False)] if small else long_chains.ROWS:
        # The loop over positions takes minutes: `python -m benchmarks long` times it.
        yield str(row), partial(_alone, long_chains.record, *row[:-1], False, _repeats(small))


PARTS = {
    "simple": Part(120, _packed("spcfg")),
    "ranks": Part(120, _packed("rankpcfg", "tnpcfg")),
    "segments": Part(100, _segments),
    "durations": Part(100, _durations),
    "pairs": Part(120, _pairs),
    "fgg": Part(60, _grammars_of_ones_own),
    "chains": Part(120, _chains),
}


def main(given: Sequence[str]) -> int:
    """Run all parts, one after the other; 1 if some row failed or is not there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=__doc__)
    parser.add_argument("--out", type=Path, metavar="FOLDER", required=True, help="of rows.jsonl and decisions.json")
    parser.add_argument("--minutes", type=float, default=8.0, help="after which no part goes on (default: 8)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="some of them, in this order")
    parser.add_argument("--small", action="store_true", help="tiny sizes, without times where there is no GPU")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # a part's own process
    args = parser.parse_args(given)
    if not torch.cuda.is_available() and not args.small:
        raise UnsupportedError("this is decided on a GPU, and there is none here.\n  To try the command: --small.")
    args.out.mkdir(parents=True, exist_ok=True)
    if args.here:
        for name in args.parts:
            _run(name, args.out, small=args.small)
        return 0
    end = time.monotonic() + 60 * args.minutes
    for name in args.parts:
        limit = min(PARTS[name].seconds, end - time.monotonic())
        if limit <= 0:
            _add(args.out, {"part": name, "failed": "no time was left"})
            continue
        own = ["--out", str(args.out), "--parts", name, "--here", *(["--small"] if args.small else [])]
        try:
            status = subprocess.run([sys.executable, "-m", "benchmarks", "gpu", *own], timeout=limit, check=False)
            if status.returncode:
                _add(args.out, {"part": name, "failed": f"its process ended with {status.returncode}"})
        except subprocess.TimeoutExpired:
            _add(args.out, {"part": name, "failed": f"was not done after {limit:.0f} s"})
        (args.out / "decisions.json").write_text(json.dumps(decisions(_rows(args.out)), indent=1) + "\n")
        (args.out / "timed-ways.json").write_text(json.dumps(timed(_rows(args.out)), indent=1) + "\n")
    found = decisions(_rows(args.out))
    print(json.dumps(found, indent=1))
    return int(bool(found["failed"]))


def decisions(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the rows say: values of the constants, rows and their aims, what failed."""
    made = next((x for x in rows if "device" in x), {})
    return {
        "device": made.get("device"),
        "torch": made.get("torch"),
        "date": datetime.now(UTC).date().isoformat(),
        "recursions/tree/packed.py CHOSEN": _chosen(
            [x for x in rows if x.get("way") == PACKED.name], lambda row: row["row"].startswith("tnpcfg")
        ),
        "recursions/tree/pairs.py CHOSEN": _chosen(
            [x for x in rows if x.get("way") == PAIRS.name],
            lambda row: "low rank" if row["row"].startswith("lpcfg") else "dense",
        ),
        "kernels/segment_scan SHARED_FROM": _shared_from([x for x in rows if x.get("way") == SHARED.name]),
        "ways": [
            {**{x: row[x] for x in ("row", "size", "precision")}, "time": _gain(row)} for row in rows if "way" in row
        ],
        "aims": [_aimed(aim, ms, rows) for aim, ms in ON_H200.items()],
        "grammars of one's own, over trees": [[x["row"], x["ratio"]] for x in rows if "trees_ms" in x],
        "failed": [x for x in rows if "failed" in x or not x.get("passed", True)],
    }


def timed(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The record of both ways for `structures`: the way before is the peer; of what was wrong or not timed nothing.

    Long durations have a record of their own, `python -m benchmarks segments`.
    """
    found = [row for row in rows if "way" in row and row["part"] != "durations" and row["passed"]]
    made = next((row for row in rows if "device" in row), {})
    return {
        "device": made.get("device"),
        "on": "GPU",
        "torch": made.get("torch"),
        "date": datetime.now(UTC).date().isoformat(),
        "command": "python -m benchmarks gpu",
        "rows": [
            {
                "structure": "Segments" if row["way"] == SHARED.name else "Trees",
                "name": row["row"],
                "size": row["size"],
                "precision": row["precision"],
                "ours_ms": row[best],
                "peer": "before",
                "peer_ms": row[f"usual_{best}"],
                "floor_ms": None,
            }
            for row in found
            if (best := _best(row)) is not None
        ],
    }


def _best(row: dict[str, Any]) -> str | None:
    """Which times of both ways there are: of captured steps where they were captured."""
    return next((x for x in ("captured_ms", "ms") if row.get(x) and row.get(f"usual_{x}")), None)


def _gain(row: dict[str, Any]) -> float | None:
    """The prepared way's time over the usual one's; infinite where it is wrong; None where it was not timed."""
    if not row["passed"]:
        return float("inf")
    both = _best(row)
    return None if both is None else float(row[both] / row[f"usual_{both}"])


def _chosen(rows: Sequence[dict[str, Any]], kind_of: Callable[[dict[str, Any]], object]) -> list[list[Any]]:
    """Precisions and kinds of charts of which every row is right and faster."""
    gains: dict[tuple[str, object], list[float]] = {}
    for row in rows:
        if (gain := _gain(row)) is not None:
            gains.setdefault((row["precision"], kind_of(row)), []).append(gain)
    return [list(kind) for kind, found in gains.items() if max(found) <= FASTER]


def _shared_from(rows: Sequence[dict[str, Any]]) -> int | None:
    """The smallest window from which on every row is right and faster; None if the largest is not."""
    found = [(-row["window"], -gain) for row in rows if (gain := _gain(row)) is not None]
    least = None
    for window, gain in sorted(found):  # of equal windows the slowest first
        if -gain > FASTER:
            break
        least = -window
    return least


def _aimed(aim: tuple[str, str, str], ms: float, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A row's best time next to its aim."""
    name, size, precision = aim
    own = [x for x in rows if x.get("row", "").startswith(name) and (x["size"], x["precision"]) == (size, precision)]
    times = [x[key] for x in own for key in ("ms", "captured_ms", "usual_ms", "usual_captured_ms") if x.get(key)]
    best = min(times, default=float("inf"))
    found = {"row": name, "size": size, "precision": precision, "at_most": ms}
    return {**found, "ms": best if times else None, "kept": best <= ms}


def _run(part: str, out: Path, *, small: bool) -> None:
    """The rows of a part, each written as it comes; what one raises is its row."""
    about = {"part": part, "device": device_name(_device()), "torch": torch.__version__}
    for name, job in PARTS[part].jobs(small):
        start = time.monotonic()
        try:
            for row in job():
                _add(out, {**about, "seconds": time.monotonic() - start, **row})
                start = time.monotonic()
        except Exception as error:  # the next one may do: whatever it is, it is told
            _add(out, {**about, "job": name, "failed": f"{type(error).__name__}: {error}"})


def _add(out: Path, row: dict[str, Any]) -> None:
    with (out / "rows.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def _rows(out: Path) -> list[dict[str, Any]]:
    path = out / "rows.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _repeats(small: bool) -> int:
    return 1 if small else REPEATS
