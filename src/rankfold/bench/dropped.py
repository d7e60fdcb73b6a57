"""Which states or logits a step of a seed leaves out, for the reference, which then leaves out the same.

Only the draw is the model's own: that every distribution knows of it is what a check is to find out.
Read next: `bench/reference.py`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rankfold.models.config import ModelConfig
from rankfold.numerics.precision import Precision, matmul_precision, parameter_precision
from rankfold.params.dropout import kept, kept_by_cluster


def dropped(model: Any, seed: int, precision: Precision) -> dict[str, Tensor]:
    """Masks by the names that `reference_log_z` knows; of a rank-space model by what has no share of its tables."""
    config: ModelConfig = model.config
    device = next(model.parameters()).device
    generator = torch.Generator(device=device).manual_seed(seed)
    if config.family == "rank":
        return _logits(model, generator, seed, precision)
    if config.family == "block":
        per_cluster = config.num_states // config.num_clusters
        keep = kept_by_cluster(config.num_clusters, per_cluster, config.state_dropout, generator=generator)
        assert keep is not None
        first = per_cluster * torch.arange(config.num_clusters, device=device)
        keep = (keep + first[:, None]).flatten()
    else:
        keep = kept(config.num_states, config.state_dropout, generator=generator, kind=config.state_dropout_kind)
        assert keep is not None
    return {"gone.states": torch.ones(config.num_states, dtype=torch.bool, device=device).index_fill(0, keep, False)}


def _logits(model: Any, generator: torch.Generator, seed: int, precision: Precision) -> dict[str, Tensor]:
    share = model.config.logit_dropout
    start = model.factors.start
    stays = torch.rand(start.shape, generator=generator, device=start.device, dtype=torch.float32) >= share
    with torch.no_grad(), matmul_precision(parameter_precision(precision), start.device):
        factors = model.factors(share, generator.manual_seed(seed))
    return {
        "kept.start": stays.double() / (1.0 - share),
        "gone.rank": factors.rank == 0,
        "gone.state": factors.state == 0,
    }
