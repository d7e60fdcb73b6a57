"""What `precision="tf32"` and `"bf16"` cost in digits and save in time, against float64 of the same numbers.

`python -m benchmarks precision` prints the table of docs/numerics.md; on a machine without a CUDA device it runs on
the CPU, where tf32 is float32.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Sequence
from functools import partial

import torch

import rankfold
from rankfold import ChainPotentials, Dense, LowRank, Operator
from rankfold.cli.bench import device_name, relative_error
from rankfold.cli.output import table
from rankfold.numerics.precision import Precision
from rankfold.planning.measure import host_times

# States, rank (0: dense), sequences, positions.
SIZES = [(4096, 0, 8, 32), (4096, 1024, 8, 32), (16384, 2048, 8, 32), (1024, 64, 4, 512)]
PRECISIONS: tuple[Precision, ...] = ("float32", "tf32", "bf16")
REPEATS = 15
HEAD = (
    "states / rank",
    "batch",
    "precision",
    "error of log Z, relative",
    "of posteriors, largest",
    "gradient step, ms",
)


def potentials(num_states: int, rank: int, num_sequences: int, num_positions: int, device: str) -> ChainPotentials:
    """A hidden Markov model with softmax tables, float32."""
    generator = torch.Generator(device).manual_seed(0)

    def scores(*shape: int) -> torch.Tensor:
        return 2 * torch.randn(*shape, generator=generator, device=device)

    transition: Operator = (
        LowRank(scores(num_states, rank).softmax(1), scores(num_states, rank).softmax(0))
        if rank
        else Dense(scores(num_states, num_states).softmax(1))
    )
    log_obs = scores(num_sequences, num_positions, num_states) - 9.0
    return ChainPotentials(scores(num_states).log_softmax(0), transition, log_obs)


def gradients(p: ChainPotentials, precision: Precision) -> list[torch.Tensor]:
    """log Z and its gradients in the observations and the factors."""
    log_obs, *factors = (x.detach().requires_grad_() for x in (p.log_obs, *p.transition.factors()))
    q = p._replace(log_obs=log_obs, transition=p.transition.with_factors(*factors))
    value = rankfold.log_z(q, precision=precision)
    return [value.detach(), *torch.autograd.grad(value.sum(), [log_obs, *factors])]


def double(p: ChainPotentials) -> ChainPotentials:
    """The same numbers in float64."""
    factors = (factor.double() for factor in p.transition.factors())
    return ChainPotentials(p.log_initial.double(), p.transition.with_factors(*factors), p.log_obs.double())


def main(given: Sequence[str]) -> int:
    """Print the table."""
    argparse.ArgumentParser(prog="python -m benchmarks precision", description=__doc__).parse_args(given)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"{device_name(device)}, torch {torch.__version__}, {datetime.date.today()}, median of {REPEATS}\n")
    lines = []
    for size in SIZES if device.type == "cuda" else SIZES[-1:]:
        p = potentials(*size, device.type)
        truth = gradients(double(p), "float32")
        for precision in PRECISIONS:
            found = gradients(p, precision)
            posterior = (found[1].double() - truth[1]).abs().max().item()
            step = host_times(partial(gradients, p, precision), device, repeats=REPEATS, warm=3)
            states, rank, sequences, positions = size
            lines.append(
                [
                    f"{states:,} / {f'{rank:,}' if rank else 'dense'}",
                    f"{sequences} x {positions}",
                    precision,
                    f"{relative_error(found[0], truth[0]):.1e}",
                    f"{posterior:.1e}",
                    f"{step.median:.1f}",
                ]
            )
    print(table(HEAD, lines, left=3))
    return 0
