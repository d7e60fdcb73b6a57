"""What `precision="tf32"` and `"bf16"` cost in digits and save in time, against float64 of the same numbers.

`python -m benchmarks.precision` prints the table of docs/numerics.md; on a machine without a CUDA device it runs on
the CPU, where tf32 is float32. Read next: `rankfold/numerics/precision.py`.
"""

from __future__ import annotations

import datetime
import time

import torch

import rankfold
from rankfold import ChainPotentials, Dense, LowRank, Operator
from rankfold.numerics.precision import Precision

# States, rank (0: dense), sequences, positions.
SIZES = [(4096, 0, 8, 32), (4096, 1024, 8, 32), (16384, 2048, 8, 32), (1024, 64, 4, 512)]
PRECISIONS: tuple[Precision, ...] = ("float32", "tf32", "bf16")
REPEATS = 15


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
    value = rankfold.chain.log_z(q, precision=precision)
    return [value.detach(), *torch.autograd.grad(value.sum(), [log_obs, *factors])]


def double(p: ChainPotentials) -> ChainPotentials:
    """The same numbers in float64."""
    factors = (factor.double() for factor in p.transition.factors())
    return ChainPotentials(p.log_initial.double(), p.transition.with_factors(*factors), p.log_obs.double())


def seconds(p: ChainPotentials, precision: Precision) -> float:
    """The median time of a gradient step, after three to warm up."""
    times = []
    for _ in range(REPEATS + 3):
        if p.log_obs.is_cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        gradients(p, precision)
        if p.log_obs.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return sorted(times[3:])[REPEATS // 2]


def main() -> None:
    """Print the table."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, {datetime.date.today()}, median of {REPEATS}\n")
    print(
        "| states / rank | batch | precision | error of log Z, relative | of posteriors, largest | gradient step, ms |"
    )
    print("|---|---|---|---:|---:|---:|")
    for size in SIZES if device == "cuda" else SIZES[-1:]:
        p = potentials(*size, device)
        truth = gradients(double(p), "float32")
        for precision in PRECISIONS:
            found = gradients(p, precision)
            relative = ((found[0] - truth[0]) / truth[0]).abs().max().item()
            posterior = (found[1].double() - truth[1]).abs().max().item()
            states, rank, sequences, positions = size
            shape = f"{states:,} / {f'{rank:,}' if rank else 'dense'} | {sequences} x {positions}"
            print(f"| {shape} | {precision} | {relative:.1e} | {posterior:.1e} | {1e3 * seconds(p, precision):.1f} |")


if __name__ == "__main__":
    main()
