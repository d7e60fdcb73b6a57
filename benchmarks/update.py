"""Time and memory of whole training updates, optimiser included: how large a model fits a card.

    python -m benchmarks.update --states 524288 --rank 512 --precision bf16

CUDA only. Peak memory is what torch's allocator had reserved, parameters, gradients and AdamW's moments included.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from rankfold.data.batch import Batch
from rankfold.models import ModelConfig, build_model
from rankfold.numerics.precision import matmul_precision, parameter_precision
from rankfold.training.config import TrainConfig
from rankfold.training.setup import optimizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--states", type=int, default=2**19)
    parser.add_argument("--rank", type=int, default=512)
    parser.add_argument("--words", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--precision", choices=["float32", "tf32", "bf16"], default="bf16")
    parser.add_argument("--updates", type=int, default=5)
    chosen = parser.parse_args()
    device = torch.device("cuda")
    config = ModelConfig(family="lhmm", num_states=chosen.states, rank=chosen.rank, dim=256)
    model = build_model(config, chosen.words).to(device)
    adam = optimizer(model, TrainConfig(optimizer="adamw"))
    draw = torch.Generator().manual_seed(0)
    words = torch.randint(chosen.words, (chosen.batch, chosen.length), generator=draw).to(device)
    batch = Batch(words, torch.full((chosen.batch,), chosen.length, device=device))
    torch.cuda.reset_peak_memory_stats()
    times, values = [], []
    for _ in range(chosen.updates + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        adam.zero_grad(set_to_none=True)
        with matmul_precision(parameter_precision(chosen.precision), device):
            total = model.log_z(model.potentials(batch), precision=chosen.precision).sum()
            (-total / words.numel()).backward()
        adam.step()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
        values.append(float(total.detach()) / words.numel())
    print(
        f"lhmm, {chosen.states:,} states, rank {chosen.rank:,}, {chosen.batch} x {chosen.length} words, AdamW, "
        f"{chosen.precision}, on {torch.cuda.get_device_name()}: {statistics.median(times[1:]):.0f} ms an update, "
        f"{torch.cuda.max_memory_reserved() / 1e9:.1f} GB reserved at most; "
        f"nats a word {-values[0]:.3f} before, {-values[-1]:.3f} after {chosen.updates}"
    )


if __name__ == "__main__":
    main()
