"""`rankfold compare`: the same hidden Markov model, dense and low rank, on the same sequences.

Equal log-likelihoods, the measured ratio of time and memory, and a picture of the posterior.
Read next: `data/synthetic.py` for the model, `plots/posterior.py` for the picture.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch

from rankfold.cli.measure import median_seconds, peak_bytes
from rankfold.cli.output import to_json
from rankfold.data.synthetic import draw_sequences, draw_tables
from rankfold.decoding.posterior import state_posterior
from rankfold.decoding.viterbi import viterbi
from rankfold.errors import DomainError
from rankfold.operators import Dense, LowRank, Operator
from rankfold.plots.posterior import expect_picture, plot_posterior, require_matplotlib
from rankfold.recursions.chain import log_z
from rankfold.recursions.potentials import ChainPotentials

NUM_WORDS, NUM_SEQUENCES, NUM_POSITIONS = 1000, 8, 64
PICTURE = "posterior.png"
Kind = Literal["dense", "low_rank"]
EXAMPLE = "example:\n  rankfold compare --states 1024 --rank 64 --out comparison"


def add_to(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "compare",
        help="dense against low rank on the same sequences, with a picture",
        description=(
            "Draw a hidden Markov model from a seed and compare its dense and low-rank forms: equal log-likelihoods, "
            "measured ratios of time and memory for one gradient step, and a picture of a posterior."
        ),
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--states", type=int, default=4096, help="number of states (default: 4096)")
    parser.add_argument("--rank", type=int, default=256, help="rank of the transition matrix (default: 256)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the model and the sequences (default: 1)")
    parser.add_argument("--out", type=Path, default=Path("rankfold-comparison"), help="folder for the picture")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the comparison; 1 if the two forms disagree."""
    result = compare(arguments.states, arguments.rank, seed=arguments.seed, out=arguments.out, progress=_say)
    print(to_json(result, indent=2) if arguments.json else _text(result))
    return 0 if result["agree"] else 1


def compare(
    num_states: int = 4096,
    rank: int = 256,
    *,
    seed: int = 1,
    out: Path = Path("rankfold-comparison"),
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """The comparison as plain data; writes `posterior.png` into `out`."""
    require_matplotlib()
    if not 0 <= seed < 2**63:
        raise DomainError(f"seed is {seed}, but must be at least 0 and below 2**63.")
    out.mkdir(parents=True, exist_ok=True)  # a folder that cannot be is found out before the work
    expect_picture(out / PICTURE)
    kinds: tuple[Kind, Kind] = ("dense", "low_rank")
    values: dict[str, torch.Tensor] = {}
    seconds: dict[str, float] = {}
    memory: dict[str, int | None] = {}
    for kind in kinds:
        progress(f"{kind}: log-likelihoods and gradient steps, {num_states:,} states")
        with torch.no_grad():
            values[kind] = log_z(potentials(kind, num_states, rank, seed))
        seconds[kind] = median_seconds(gradient_step(kind, num_states, rank, seed), repeats=5)
        progress(f"{kind}: memory, in a fresh process")
        memory[kind] = peak_bytes(gradient_step, kind, num_states, rank, seed)
    progress("posterior and best path of the first sequence")
    picture = draw_posterior(num_states, rank, seed, out)
    difference = (values["dense"] - values["low_rank"]).abs().max().item()
    return {
        "num_states": num_states,
        "rank": rank,
        "tokens": NUM_SEQUENCES * NUM_POSITIONS,
        "log_likelihood": {kind: values[kind].sum().item() for kind in kinds},
        "largest_difference": difference,
        # Both are float32 sums of the same numbers in another order: T steps of round-off, with a margin of 8.
        "agree": difference <= 8 * NUM_POSITIONS * torch.finfo(torch.float32).eps * 8,
        "seconds": seconds,
        "time_ratio": seconds["dense"] / seconds["low_rank"],
        "memory": memory,
        "picture": str(picture),
    }


def potentials(kind: Kind, num_states: int, rank: int, seed: int, *, trained: bool = False) -> ChainPotentials:
    """The same sequences under the dense or the low-rank form of the same model."""
    tables = draw_tables(num_states, rank, NUM_WORDS, seed=seed)
    words = draw_sequences(tables, NUM_SEQUENCES, NUM_POSITIONS, seed=seed).words
    factors = [tables.left @ tables.right.T] if kind == "dense" else [tables.left, tables.right]
    factors = [factor.requires_grad_(trained) for factor in factors]
    transition: Operator = Dense(*factors) if kind == "dense" else LowRank(*factors)
    log_obs = tables.emission.log().T[words].requires_grad_(trained)
    return ChainPotentials(tables.start.log(), transition, log_obs)


def gradient_step(kind: Kind, num_states: int, rank: int, seed: int) -> Callable[[], object]:
    """A call that computes log Z and its gradient in the transition and the observations."""
    p = potentials(kind, num_states, rank, seed, trained=True)
    inputs = [p.log_obs, *p.transition.factors()]
    return lambda: torch.autograd.grad(log_z(p).sum(), inputs)


def draw_posterior(num_states: int, rank: int, seed: int, out: Path) -> Path:
    """Save the picture of the first sequence's posterior, best path and true states."""
    p = potentials("dense", num_states, rank, seed)
    tables = draw_tables(num_states, rank, NUM_WORDS, seed=seed)
    truth = draw_sequences(tables, NUM_SEQUENCES, NUM_POSITIONS, seed=seed).states[0]
    first = p._replace(log_obs=p.log_obs[:1])
    return plot_posterior(
        state_posterior(first)[0],
        viterbi(first).path[0],
        out / PICTURE,
        truth=truth,
        title=f"Where a hidden Markov model of {num_states:,} states thinks it is",
    )


def _say(line: str) -> None:
    print(f"  {line} ...", file=sys.stderr, flush=True)


def _speed(ratio: float) -> str:
    return f"{ratio:.1f}x faster" if ratio >= 1 else f"{1 / ratio:.1f}x slower"


def _text(result: dict[str, Any]) -> str:
    value, seconds, memory = result["log_likelihood"], result["seconds"], result["memory"]
    known = all(memory.values())
    ratio = f"{memory['dense'] / memory['low_rank']:.1f}x less" if known else "not measurable here"
    sizes = "  ".join(f"{kind} {memory[kind] / 2**20:,.0f} MiB" for kind in memory) if known else ""
    return "\n".join(
        [
            f"One hidden Markov model, {result['num_states']:,} states, rank {result['rank']:,}, "
            f"{NUM_SEQUENCES} sequences of {NUM_POSITIONS} words:",
            f"  log-likelihood   dense {value['dense']:.4f}  low rank {value['low_rank']:.4f}  "
            f"(largest difference of a sequence {result['largest_difference']:.1e} nats: "
            f"{'equal' if result['agree'] else 'NOT EQUAL'})",
            f"  gradient step    {_speed(result['time_ratio'])} in low rank  "
            f"(dense {seconds['dense'] * 1e3:,.0f} ms, low rank {seconds['low_rank'] * 1e3:,.0f} ms)",
            f"  peak memory      {ratio} in low rank  ({sizes})" if known else f"  peak memory      {ratio}",
            f"  picture          {result['picture']}",
        ]
    )
