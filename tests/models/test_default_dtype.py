"""Torch's default dtype changes nothing: models, what is saved of them, estimators, questions asked of potentials."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rankfold
from rankfold.data.batch import frame_batch, symbol_batch
from rankfold.data.frames import Frames
from rankfold.models import FrameConfig, FrameModel, GrammarConfig, build_model, load_model
from tests.estimators.cases import observed, walks
from tests.models import cases, grammar_cases

GIVEN = [torch.float64, torch.float16]


@pytest.fixture(autouse=True)
def default() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)


def check(work: Any) -> None:
    """The same tensors, to the last bit, under every default."""
    expected = work()
    for dtype in GIVEN:
        torch.set_default_dtype(dtype)
        found = work()
        assert found.keys() == expected.keys()
        for name, x in expected.items():
            assert found[name].dtype == x.dtype, name
            assert torch.equal(found[name], x), name


def words(config: Any, batch: Any, folder: Path, **choices: Any) -> dict[str, torch.Tensor]:
    """The parameters, a draw of dropout, and the same of what was saved and loaded."""
    found = {}
    model = build_model(config, 3, **choices)
    for step in ("built", "loaded"):
        found |= {f"{step} {name}": x for name, x in model.state_dict().items()}
        kept = torch.Generator().manual_seed(1) if isinstance(config, rankfold.models.ModelConfig) else None
        found[f"{step} log_z"] = model.log_likelihood(batch, **({} if kept is None else {"generator": kept})).detach()
        model.save_pretrained(folder)
        model = load_model(folder)
    return found


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_models_of_words(case: cases.Case, tmp_path: Path) -> None:
    check(lambda: words(case.config, cases.some_strings(), tmp_path, clusters=case.clusters()))


@pytest.mark.parametrize("case", grammar_cases.CASES, ids=lambda case: case.name)
def test_grammars(case: Any, tmp_path: Path) -> None:
    check(lambda: words(case.config, grammar_cases.some_sentences(), tmp_path))


def test_compound_grammars(tmp_path: Path) -> None:
    config = GrammarConfig(family="cpcfg", num_nonterminals=2, num_preterminals=2, dim=3, num_layers=1)

    def work() -> dict[str, torch.Tensor]:
        model = build_model(config, 3)
        model.save_pretrained(tmp_path)
        loaded = load_model(tmp_path)
        kept = torch.Generator().manual_seed(1)
        bound = loaded.log_likelihood(grammar_cases.some_sentences(), generator=kept).detach()
        return {**model.state_dict(), **{f"loaded {k}": x for k, x in loaded.state_dict().items()}, "bound": bound}

    check(work)


FRAMES = [
    (family, observations, durations, neural)
    for family, observations, durations, neural in itertools.product(
        ("frame_hmm", "lhsmm"),
        ("gaussian", "bernoulli", "categorical"),
        ("poisson", "negative_binomial", "categorical"),
        (False, True),
    )
    if family == "lhsmm" or durations == "poisson"
]


@pytest.mark.parametrize(("family", "observations", "durations", "neural"), FRAMES)
def test_models_of_frames(family: str, observations: str, durations: str, neural: bool, tmp_path: Path) -> None:
    config = FrameConfig(
        family=family, observations=observations, durations=durations, neural=neural, num_states=3, rank=2,
        max_duration=3, dim=2, num_layers=1, state_dropout=0.4,
    )  # fmt: skip
    rows = [[0, 1, 1, 0], [1, 0]]
    if observations == "categorical":
        batch = symbol_batch(rows)
    else:
        arrays = [np.array([[x, 1 - x] for x in row], dtype=np.float32) for row in rows]
        batch = frame_batch(Frames(arrays, ["a", "b"]))

    def work() -> dict[str, torch.Tensor]:
        model, found = build_model(config, 2), {}
        for step in ("built", "loaded"):
            found |= {f"{step} {name}": x for name, x in model.state_dict().items()}
            kept = torch.Generator().manual_seed(1)
            found[f"{step} log_z"] = model.log_likelihood(batch, generator=kept).detach()
            model.save_pretrained(tmp_path)
            model = FrameModel.from_pretrained(tmp_path)
        return found

    check(work)


@pytest.mark.parametrize("kind", ["gaussian", "categorical"])
@pytest.mark.parametrize("algorithm", ["em", "sgd"])
@pytest.mark.parametrize("name", ["HMM", "HSMM"])
def test_estimators(name: str, algorithm: str, kind: str) -> None:
    data = observed(kind, walks(2)[0])

    def work() -> dict[str, torch.Tensor]:
        made = getattr(rankfold.estimators, name)(3, observations=kind, max_iter=2, tol=None, random_state=0)
        made.fit(data, algorithm=algorithm)
        return {
            "score": torch.tensor(made.score(data), dtype=torch.float64),
            "probabilities": torch.as_tensor(made.predict_proba(data[0])),
            **{f"model {name}": x for name, x in made.model_.state_dict().items()},
        }

    check(work)


def test_questions() -> None:
    def work() -> dict[str, torch.Tensor]:
        weight = torch.rand(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float32).requires_grad_()
        log_obs = torch.zeros(2, 4, 3, dtype=torch.float32)
        first = torch.zeros(3, dtype=torch.float32)
        p = rankfold.ChainPotentials(first, rankfold.Dense(weight), log_obs, lengths=torch.tensor([4, 2]))
        log_duration = torch.zeros(3, 2, dtype=torch.float32)
        s = rankfold.SegmentPotentials(first, p.transition, log_duration, log_obs, lengths=p.lengths)
        rule = rankfold.BinaryDense(weight.expand(3, 3, 3))
        t = rankfold.TreePotentials(log_obs, rankfold.Branch(rule, rule, rule, rule), first, lengths=p.lengths)
        totals = [
            rankfold.log_z(p),
            rankfold.log_z(s),
            rankfold.log_z(t),
        ]
        grads = [torch.autograd.grad(x.sum(), weight)[0] for x in totals]
        counts = rankfold.expected_counts(p)
        return {
            **{f"total {i}": x.detach() for i, x in enumerate(totals)},
            **{f"grad {i}": x for i, x in enumerate(grads)},
            "counts": counts.transition[0].detach(),
            "entropy": rankfold.entropy(p).detach(),
            "best": rankfold.viterbi(p).log_prob,
            "segments": rankfold.viterbi(s).log_prob,
            "trees": rankfold.posterior(t).span.detach(),
            "grammar": torch.zeros(1, dtype=rankfold.fgg.library("hmm", Z=2, V=2).dtype),
        }

    check(work)
