"""What dropout keeps: exact numbers, never nothing, and nothing at all without a generator."""

import pytest
import torch

from rankfold.params.dropout import (
    DropoutKind,
    drop_entries,
    drop_logits,
    kept_by_cluster,
    kept_indices,
    kept_mask,
    num_kept,
)
from tests.params.build import seeded

INF = float("inf")


@pytest.mark.parametrize(
    ("size", "dropout", "number"),
    [(1, 0.999, 1), (1, 0.5, 1), (2, 0.5, 1), (3, 0.999, 1), (5, 0.2, 4), (10, 0.25, 8), (10, 0.14, 9), (63, 0.5, 32)],
)
def test_exact(size: int, dropout: float, number: int) -> None:
    assert num_kept(size, dropout) == number
    seen = set()
    for seed in range(8):
        keep = kept_indices(size, dropout, generator=seeded(seed))
        assert keep is not None
        assert len(keep) == number
        assert keep.tolist() == sorted(set(keep.tolist()))
        assert 0 <= int(keep.min()) <= int(keep.max()) < size
        seen.add(tuple(keep.tolist()))
    assert len(seen) > 1 or number == size or size == 1


def test_every_index_is_kept_equally_often() -> None:
    count = torch.zeros(5)
    for seed in range(1000):
        count[kept_indices(5, 0.4, generator=seeded(seed))] += 1
    # Binomial(1000, 0.6): five standard deviations.
    assert (count - 600).abs().max() < 5 * (1000 * 0.6 * 0.4) ** 0.5


def test_bernoulli() -> None:
    lengths = []
    for seed in range(400):
        keep = kept_indices(10, 0.4, generator=seeded(seed), kind="bernoulli")
        assert keep is not None
        assert keep.tolist() == sorted(set(keep.tolist()))
        lengths.append(len(keep))
    assert len(set(lengths)) > 3
    assert sum(lengths) / 400 == pytest.approx(6, abs=5 * (2.4 / 400) ** 0.5)
    for seed in range(20):
        keep = kept_indices(3, 0.999, generator=seeded(seed), kind="bernoulli")
        assert keep is not None
        assert len(keep) == 1


@pytest.mark.parametrize("kind", ["exact", "bernoulli"])
@pytest.mark.parametrize(("size", "dropout"), [(1, 0.5), (3, 0.999), (17, 0.4), (63, 0.1)])
def test_a_mask_keeps_what_indices_keep(kind: DropoutKind, size: int, dropout: float) -> None:
    """And leaves the generator where they leave it, so that all that is drawn later is the same too."""
    for seed in range(20):
        one, other = seeded(seed), seeded(seed)
        keep = kept_indices(size, dropout, generator=one, kind=kind)
        stays = kept_mask(size, dropout, generator=other, kind=kind)
        assert keep is not None
        assert stays is not None
        assert stays.dtype == torch.bool
        assert [i for i, stay in enumerate(stays.tolist()) if stay] == keep.tolist() != []
        assert torch.equal(one.get_state(), other.get_state())


@pytest.mark.parametrize(("size", "dropout", "number"), [(1, 0.9, 1), (4, 0.5, 2), (5, 0.999, 1), (3, 0.4, 2)])
def test_by_cluster(size: int, dropout: float, number: int) -> None:
    keep = kept_by_cluster(7, size, dropout, generator=seeded())
    assert keep is not None
    assert keep.shape == (7, number)
    for row in keep.tolist():
        assert row == sorted(set(row))
        assert 0 <= min(row) <= max(row) < size
    assert size == 1 or len({tuple(row) for row in keep.tolist()}) > 1  # each cluster by itself


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dropout", [0.3, 0.999])
def test_a_distribution_never_loses_all_its_logits(dropout: float, dim: int) -> None:
    logits = torch.randn(17, 17, generator=seeded(1), dtype=torch.float64)
    dropped = drop_logits(logits, dropout, dim, generator=seeded(2))
    gone = dropped == -INF
    assert not gone.all(dim).any()
    assert torch.equal(dropped[~gone], logits[~gone])
    share = gone.double().mean(dim)
    if dropout == 0.999:
        # All but a few would have lost everything: those are whole, not left with one entry.
        assert (share == 0).sum() >= 15
    else:
        assert float(share.mean()) == pytest.approx(0.3, abs=5 * (0.21 / 289) ** 0.5)
    assert torch.isfinite(torch.softmax(dropped, dim)).all()


def test_one_logit_stays() -> None:
    logits = torch.tensor([[2.0], [3.0]])
    assert torch.equal(drop_logits(logits, 0.999, 1, generator=seeded()), logits)


def test_entries_keep_their_mean() -> None:
    x = torch.full((10_000,), 2.0, dtype=torch.float64)
    dropped = drop_entries(x, 0.25, generator=seeded())
    assert sorted(set(dropped.tolist())) == [0.0, pytest.approx(2 / 0.75)]
    assert float((dropped == 0).double().mean()) == pytest.approx(0.25, abs=5 * (0.1875 / 10_000) ** 0.5)


def test_without_a_generator_or_without_dropout_all_stay() -> None:
    x = torch.randn(3, 4, generator=seeded())
    for generator, dropout in ((None, 0.5), (seeded(), 0.0)):
        assert kept_indices(5, dropout, generator=generator) is None
        assert kept_mask(5, dropout, generator=generator) is None
        assert kept_by_cluster(2, 5, dropout, generator=generator) is None
        assert drop_logits(x, dropout, 1, generator=generator) is x
        assert drop_entries(x, dropout, generator=generator) is x


@pytest.mark.parametrize("kind", ["exact", "bernoulli"])
def test_a_seed_repeats(kind: DropoutKind) -> None:
    one, two, other = (kept_indices(63, 0.5, generator=seeded(seed), kind=kind) for seed in (3, 3, 4))
    assert one is not None
    assert two is not None
    assert other is not None
    assert one.tolist() == two.tolist() != other.tolist()


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    x = torch.zeros(3, 3)
    kept_indices(5, 0.5, generator=seeded())
    kept_indices(5, 0.5, generator=seeded(), kind="bernoulli")
    kept_mask(5, 0.5, generator=seeded())
    kept_mask(5, 0.5, generator=seeded(), kind="bernoulli")
    kept_by_cluster(2, 5, 0.5, generator=seeded())
    drop_logits(x, 0.5, 1, generator=seeded())
    drop_entries(x, 0.5, generator=seeded())
    assert torch.equal(torch.get_rng_state(), before)
