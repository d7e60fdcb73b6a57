"""Captured counts of mini-batch EM: the updates of eager ones, in float32 and TF32; and counts below float32."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch

import rankfold
from rankfold.data.batch import Batch
from rankfold.data.clusters import uniform_clusters
from rankfold.models import ModelConfig, build_model
from rankfold.models.config import Family
from rankfold.numerics.precision import Precision
from rankfold.training.batch_em import BatchEM
from rankfold.training.config import Config, DataConfig, TrainConfig
from rankfold.training.memory_budget import Budget
from rankfold.training.setup import optimizer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
CUDA = torch.device("cuda")
FAMILIES: tuple[Family, ...] = get_args(Family)


def em_steps(family: Family, precision: Precision, *, graphs: bool) -> BatchEM:
    sizes = {"num_states": 48, "rank": 16, "band": 3, "num_clusters": 4}
    config = Config(
        ModelConfig(family=family, neural=False, **sizes),  # type: ignore[arg-type]
        DataConfig(tokens=64, rounding=8),
        TrainConfig(optimizer="em", momentum=0.6, smoothing=0.05, precision=precision, graphs=graphs),
    )
    clusters = uniform_clusters(30, 4, seed=0) if family == "block" else None
    model: Any = build_model(config.model, 30, clusters=clusters, seed=3).to(CUDA)
    draw = torch.Generator().manual_seed(1)
    for x in model.parameters():
        x.data.copy_(torch.randn(x.shape, generator=draw))

    def never(batches: list[Batch], what: str) -> Any:
        raise AssertionError(what)

    return BatchEM(model, optimizer(model, config.train), config, Budget(), never, 1000)


@pytest.mark.parametrize("precision", ["float32", "tf32"])
@pytest.mark.parametrize("family", FAMILIES)
def test_captured_counts_give_the_updates_of_eager_ones(family: Family, precision: Precision) -> None:
    """Two batches an update, other shapes and lengths; the second shape shares the first one's memory."""
    captured, eager = (em_steps(family, precision, graphs=graphs) for graphs in (True, False))
    assert (captured.graphs is not None) == (family in ("hmm", "block"))  # others have shares in linear space
    if captured.graphs is not None:
        captured._counted = lambda *_: pytest.fail("this update ran without graphs")  # type: ignore[method-assign]
    draw = torch.Generator().manual_seed(0)
    for number, (rows, width) in enumerate([(3, 7), (8, 8), (2, 13), (5, 8)]):
        batches = [
            Batch(torch.randint(30, (rows, size), generator=draw), torch.randint(1, size + 1, (rows,), generator=draw))
            for size in (width, 8)
        ]
        tokens = sum(batch.num_tokens for batch in batches)
        found, expected = (one(batches, tokens, number)[0] for one in (captured, eager))
        assert found == pytest.approx(expected, rel=1e-6)
        for one, other in zip(captured.sums, eager.sums, strict=True):
            # float32: sums in another order; TF32 rounds operands to 2^-11, which parameters that differ carry on.
            limit = {"rtol": 1e-4, "atol": 1e-4} if precision == "float32" else {"rtol": 2e-2, "atol": 2e-2}
            torch.testing.assert_close(one, other, **limit)  # type: ignore[arg-type]
    if captured.graphs is not None:
        assert len(captured.graphs.shapes) == 2


@pytest.mark.parametrize("rows", [8, 100])  # 8: both passes in one kernel
def test_counts_in_tf32_are_near_those_of_float64(rows: int) -> None:
    draw = torch.Generator().manual_seed(2)
    wide = [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in ((256,), (256, 256), (rows, 9, 256))]
    lengths = torch.randint(1, 10, (rows,), generator=draw)

    def potentials(dtype: torch.dtype) -> rankfold.ChainPotentials:
        start, transition, log_obs = (x.to(CUDA, dtype) for x in wide)
        table = rankfold.Dense.from_log(transition.log_softmax(1))
        return rankfold.ChainPotentials(start.log_softmax(0), table, log_obs, lengths=lengths.to(CUDA))

    exact = rankfold.expected_counts(potentials(torch.float64))
    for precision, limit in (("float32", 1e-5), ("tf32", 5e-3), ("bf16", 5e-2)):
        found = rankfold.expected_counts(potentials(torch.float32), precision)  # type: ignore[arg-type]
        for x, y in (
            (found.initial, exact.initial), (found.transition[0], exact.transition[0]), (found.state, exact.state)
        ):  # fmt: skip
            error = float((x.double() - y).abs().sum() / y.sum())
            assert error < limit, (precision, error)
        torch.testing.assert_close(found.log_z, exact.log_z, rtol=0.0, atol=10 * 9 * limit)
