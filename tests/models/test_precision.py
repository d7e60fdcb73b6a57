"""Every family in every precision: training runs, and distributions stay normalised."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest
import torch

from rankfold.data.batch import Batch
from rankfold.data.clusters import Clusters
from rankfold.errors import DomainError, UnsupportedError
from rankfold.models import ModelConfig, build_model
from rankfold.models.catalog import AnyModel
from rankfold.models.config import Family
from rankfold.numerics.precision import Precision, matmul_precision, parameter_precision

FAMILIES: tuple[Family, ...] = get_args(Family)


def model_of(family: str, *, neural: bool = True) -> AnyModel:
    sizes = {"num_states": 6, "rank": 4, "dim": 5, "band": 1, "num_clusters": 2}
    config = ModelConfig(family=family, neural=neural, **sizes)  # type: ignore[arg-type]
    return build_model(config, 3, clusters=Clusters(torch.tensor([0, 1, 1]), 2), seed=1)


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize("neural", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_strings_sum_to_one_in_every_precision(family: str, precision: Precision, *, neural: bool) -> None:
    model = model_of(family, neural=neural)
    batch = model.batch(torch.tensor(list(itertools.product(range(3), repeat=3))))
    with matmul_precision(parameter_precision(precision), torch.device("cpu")):
        log_z = model.log_z(model.potentials(batch), precision=precision)
        gradients = torch.autograd.grad(log_z.sum(), list(model.parameters()), allow_unused=True)
    # bfloat16 has 8 bits: three steps of products of numbers rounded to 2^-9.
    assert float(log_z.detach().exp().sum()) == pytest.approx(1.0, abs=0.03 if precision == "bf16" else 1e-5)
    assert all(x is None or bool(torch.isfinite(x).all()) for x in gradients)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_models_are_not_saved(dtype: torch.dtype, tmp_path: object) -> None:
    with pytest.raises(UnsupportedError, match=r"the model is (bfloat16|float16)"):
        model_of("lhmm").to(dtype).save_pretrained(str(tmp_path))


def test_block_chains_are_checked_in_float64() -> None:
    """Logarithms of the same numbers in float64: an evaluation must not compare a number with itself."""
    model = model_of("block")
    for x in model.parameters():
        x.data *= 7.0
    with torch.no_grad():
        p = model.potentials(model.batch(torch.tensor([[0, 1, 2, 1, 0, 2, 1, 1, 0]])))
        fast, slow = (float(model.log_z(p, arithmetic)) for arithmetic in ("scaled", "log"))
        names = ("log_initial", "log_transition", "log_obs")
        exact = float(model.log_z(p._replace(**{name: getattr(p, name).double() for name in names})))
    assert fast == pytest.approx(slow, rel=1e-5)
    assert fast != slow
    assert slow == exact


def test_ids_outside_the_vocabulary_are_refused() -> None:
    for word in (3, -1):
        with pytest.raises(DomainError, match=f"the id {word}, but this model knows 0 to 2"):
            model_of("lhmm").log_likelihood(Batch(torch.tensor([[0, word]]), torch.tensor([2])))


def test_many_sentences_are_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankfold.models.sequence.AT_ONCE", 4)
    drawn = model_of("lhmm").generate_ids(11, max_length=5, generator=torch.Generator().manual_seed(0))
    assert len(drawn) == 11
    assert len({tuple(ids) for ids in drawn}) > 1
