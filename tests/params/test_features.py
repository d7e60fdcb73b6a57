"""Feature maps against their formulas, and against what their random projections promise."""

import math

import pytest
import torch

from rankfold.params.dynamics.features import FeatureKind, FeatureMap, FreeFeatures, orthogonal_features
from tests.oracles import tables
from tests.params.build import close, seeded, stirred


@pytest.mark.parametrize(("dim", "rank"), [(1, 1), (1, 5), (3, 2), (3, 3), (3, 8), (5, 17)])
def test_columns_of_a_block_are_orthogonal(dim: int, rank: int) -> None:
    features = orthogonal_features(dim, rank, generator=seeded()).double()
    assert features.shape == (dim, rank)
    for start in range(0, rank, dim):
        block = features[:, start : start + dim]
        length = block.norm(dim=0)
        assert (length > 0).all()
        cosine = (block / length).T @ (block / length)
        # Directions come from a float32 factorisation.
        torch.testing.assert_close(cosine, torch.eye(block.shape[1], dtype=torch.float64), rtol=0.0, atol=1e-5)


def test_lengths_are_those_of_gaussian_vectors() -> None:
    dim = 3
    draws = torch.stack([orthogonal_features(dim, 5, generator=seeded(seed)) for seed in range(400)]).double()
    squares = draws.square().sum(1)  # chi-square with dim degrees: mean dim, variance 2 dim
    assert abs(float(squares.mean()) - dim) < 5 * math.sqrt(2 * dim / squares.numel())
    assert float(squares.var()) == pytest.approx(2 * dim, rel=0.35)
    # Every column is a standard Gaussian vector: no direction is preferred, no two entries belong together.
    flat = draws.transpose(1, 2).reshape(-1, dim)
    assert (flat.mean(0).abs() < 5 / math.sqrt(len(flat))).all()
    covariance = flat.T @ flat / len(flat)
    assert (covariance - torch.eye(dim, dtype=torch.float64)).abs().max() < 5 * math.sqrt(2 / len(flat))


@pytest.mark.parametrize("kind", ["exp", "positive"])
@pytest.mark.parametrize("rank", [1, 2, 7])
def test_log_features(kind: FeatureKind, rank: int, generator: torch.Generator) -> None:
    module = stirred(FeatureMap(3, rank, kind=kind, generator=generator))
    x = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    projection = module.projection.tolist()
    expected = [tables.log_features(row, projection, kind) for row in x.tolist()]
    close(module(x), expected)
    close(module(x[0]), expected[0])
    keep = torch.tensor([rank - 1])
    close(module(x, keep), [[row[rank - 1]] for row in expected])


def test_positive_features_estimate_the_softmax_kernel() -> None:
    generator = seeded(3)
    x, y = 0.5 * torch.randn(2, 4, generator=generator, dtype=torch.float64)
    estimates = []
    for seed in range(600):
        module = FeatureMap(4, 6, kind="positive", generator=seeded(seed)).double()
        estimates.append((module(x) + module(y)).exp().mean().item())
    found = torch.tensor(estimates, dtype=torch.float64)
    error = float(found.std()) / math.sqrt(len(found))
    truth = math.exp(float(x @ y))
    assert error < 0.05 * truth  # otherwise the next line says nothing
    assert abs(float(found.mean()) - truth) < 4 * error


def test_free_features_are_themselves() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    assert FreeFeatures()(x) is x
    assert FreeFeatures()(x, torch.tensor([0, 2])).tolist() == [[0.0, 2.0], [3.0, 5.0]]
    assert FreeFeatures()(x[0], torch.tensor([1])).tolist() == [1.0]
