"""Fixed seeds of models and estimators: parameters as drawn, potentials, losses, every gradient, steps of EM."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.regression.library import (
    HMM,
    HSMM,
    Batch,
    FrameConfig,
    GrammarConfig,
    ModelConfig,
    Numbers,
    build_model,
    uniform_clusters,
)
from tests.regression.recursion_seeds import EXACT, FITTED, HALF, Case, mapped, normal, seeded, short

NUM_WORDS = 11
WORD_MODELS: dict[str, dict[str, Any]] = {
    "hmm": {"family": "hmm"},
    "lhmm": {"family": "lhmm"},
    "lhmm positive bernoulli": {"family": "lhmm", "feature_map": "positive", "state_dropout_kind": "bernoulli"},
    "banded": {"family": "banded", "band": 2},
    "block": {"family": "block"},
    "block tied": {"family": "block", "tied": True, "reset_eos": True},
    "rank": {"family": "rank", "plan": "state"},
    "rank space": {"family": "rank", "plan": "rank"},
    # Free tables that begin as those of 0.1 did, and those of a spread of 1.
    **{f"{x} free": {"family": x, "neural": False, "init": "xavier"} for x in ("hmm", "lhmm", "banded")},
    **{f"{x} free": {"family": x, "neural": False} for x in ("block", "rank")},
    **{f"{x} free spread": {"family": x, "neural": False} for x in ("hmm", "lhmm", "banded")},
}
SMALL = {"num_states": 12, "rank": 6, "dim": 5, "num_layers": 1, "num_clusters": 3}
DROPPED = {"state_dropout": 0.3, "feature_dropout": 0.3, "logit_dropout": 0.3}
GRAMMARS: dict[str, dict[str, Any]] = {
    "npcfg": {"family": "npcfg"},
    "cpcfg": {"family": "cpcfg", "latent_dim": 4, "encoder_dim": 5},
    "tnpcfg": {"family": "tnpcfg", "plan": "state"},
    "rankpcfg": {"family": "rankpcfg", "plan": "state"},
    "rankpcfg released in rank space": {"family": "rankpcfg", "plan": "rank", "released": True},
    "lpcfg": {"family": "lpcfg"},
    "lpcfg released": {"family": "lpcfg", "released": True, "low_rank": ("span_span", "span_leaf")},
    "spcfg": {"family": "spcfg"},
    **{f"{family} free": {"family": family, "neural": False} for family in ("npcfg", "tnpcfg", "lpcfg", "spcfg")},
}
FEW = {"num_nonterminals": 3, "num_preterminals": 5, "rank": 4, "dim": 6, "num_layers": 1, "single_words": True}
NUM_FEATURES = 4
FRAME_MODELS: dict[str, dict[str, Any]] = {
    "hmm gaussian": {"family": "frame_hmm"},
    "hmm gaussian tied": {"family": "frame_hmm", "tied_variance": True, "variance_prior": 1.5},
    "hmm bernoulli": {"family": "frame_hmm", "observations": "bernoulli"},
    "hmm categorical": {"family": "frame_hmm", "observations": "categorical"},
    "lhmm gaussian": {"family": "frame_lhmm"},
    "lhmm bernoulli neural": {"family": "frame_lhmm", "observations": "bernoulli", "neural": True},
    "hsmm poisson": {"family": "hsmm"},
    "hsmm negative binomial": {"family": "hsmm", "durations": "negative_binomial", "censored": True},
    "hsmm categorical": {"family": "hsmm", "durations": "categorical", "observations": "categorical"},
    "lhsmm poisson": {"family": "lhsmm"},
    "lhsmm neural": {"family": "lhsmm", "neural": True, "self_transitions": True},
}


def models() -> Iterator[Case]:
    """A small model of every family, in both dtypes, with and without dropout."""
    for name, choices in WORD_MODELS.items():
        config = ModelConfig(**SMALL, **DROPPED, **choices)
        for dtype, exact in EXACT.items():
            yield Case(f"words/{name}/{short(dtype)}", _words(config, dtype), exact)
    config = ModelConfig(**SMALL, **DROPPED, family="lhmm")
    yield Case("words/lhmm/tf32", _words(config, torch.float32, precision="tf32"), EXACT[torch.float32])
    yield Case("words/lhmm/bf16", _words(config, torch.float32, precision="bf16"), HALF)
    for name, choices in GRAMMARS.items():
        grammar = GrammarConfig(**FEW, **choices)
        for dtype, exact in EXACT.items():
            yield Case(f"grammars/{name}/{short(dtype)}", _words(grammar, dtype), exact)
    for name, choices in FRAME_MODELS.items():
        shape = {"num_states": 5, "rank": 3, "max_duration": 4, "dim": 6, "num_layers": 1, **choices}
        for dtype, exact in EXACT.items():
            yield Case(f"frames/{name}/{short(dtype)}", _frames(shape, dtype), exact)


def _words(config: Any, dtype: torch.dtype, **how: Any) -> Callable[[], Numbers]:
    def make() -> Numbers:
        clusters = uniform_clusters(NUM_WORDS, 3, seed=0) if config.family == "block" else None
        model = build_model(config, NUM_WORDS, clusters=clusters, seed=3)
        found = _drawn(model, dtype)
        model.to(dtype)
        words = torch.randint(NUM_WORDS, (4, 6), generator=seeded(91))
        batch = Batch(values=words, lengths=torch.tensor([6, 3, 5, 2]))
        found |= _potentials(model.potentials(batch))
        drops = not isinstance(config, GrammarConfig) or config.family == "cpcfg"  # whose draw takes the generator
        found |= _losses(model, lambda g: model.log_z(model.potentials(batch, generator=g), **how), drops=drops)
        with torch.no_grad():
            found["log_likelihood"] = model.log_likelihood(batch)
        return found

    return make


def _frames(shape: dict[str, Any], dtype: torch.dtype) -> Callable[[], Numbers]:
    def make() -> Numbers:
        model = build_model(FrameConfig(**shape, state_dropout=0.3, feature_dropout=0.3), NUM_FEATURES, seed=3)
        plain = build_model(FrameConfig(**shape), NUM_FEATURES, seed=3)
        found = _drawn(model, dtype)
        model.to(dtype)
        plain.to(dtype)
        batch = Batch(values=_observed(shape, dtype), lengths=torch.tensor([7, 3, 6]))
        found |= _potentials(model.potentials(batch))
        found |= _losses(model, lambda g: model.log_likelihood(batch, generator=g))
        found["log_prior"] = plain.log_prior().detach()
        found["posterior"] = plain.posterior(batch)
        found["states"] = plain.states(batch)
        drawn = plain.sample([5, 3], generator=seeded(6))
        found |= {f"sample.{i}.{part}": x for i, pair in enumerate(drawn) for part, x in enumerate(pair)}
        return found

    return make


def _observed(shape: dict[str, Any], dtype: torch.dtype) -> Tensor:
    """Frames with one that is missing and, of features, a part of one."""
    kind = shape.get("observations", "gaussian")
    if kind == "categorical":
        symbols = torch.randint(NUM_FEATURES, (3, 7), generator=seeded(92))
        symbols[0, 2] = -1
        return symbols
    x = normal(92, 3, 7, NUM_FEATURES)
    x = (x > 0).double() if kind == "bernoulli" else x
    x[0, 2], x[1, 1, 0] = math.nan, math.nan
    return x.to(dtype)


def _drawn(model: Any, dtype: torch.dtype) -> Numbers:
    """The parameters as they were drawn, which is in float32 whatever comes after: once is enough."""
    named = model.named_parameters() if dtype == torch.float64 else []
    return {f"drawn.{name}": x.detach().clone() for name, x in named}


def _potentials(p: Any) -> Numbers:
    found: Numbers = {}

    def note(name: str, x: Tensor) -> Tensor:
        found[f"potentials.{name}"] = x.detach()
        return x

    mapped(p, note)
    return found


def _losses(model: Any, log_z: Callable[[torch.Generator | None], Tensor], *, drops: bool = True) -> Numbers:
    """Loss and gradients without and with dropout."""
    found: Numbers = {}
    for kind, generator in (("plain", None), ("dropout", seeded(7)))[: 1 + drops]:
        total = log_z(generator)
        names, parameters = zip(*model.named_parameters(), strict=True)
        grads = torch.autograd.grad(-total.sum(), parameters, materialize_grads=True)
        found[f"{kind}.log_z"] = total.detach()
        found |= {f"{kind}.grad.{name}": x for name, x in zip(names, grads, strict=True)}
    return found


ESTIMATORS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "hmm": (HMM, {}, "gaussian"),
    "hmm tied smoothed": (HMM, {"tied_variance": True, "smoothing": 0.5, "variance_prior": 2.0}, "gaussian"),
    "hmm low rank": (HMM, {"rank": 2}, "gaussian"),
    "hmm bernoulli": (HMM, {"observations": "bernoulli", "smoothing": 0.1}, "bernoulli"),
    "hmm categorical": (HMM, {"observations": "categorical"}, "categorical"),
    "hsmm poisson": (HSMM, {"max_duration": 6}, "gaussian"),
    "hsmm negative binomial": (HSMM, {"max_duration": 6, "durations": "negative_binomial"}, "gaussian"),
    "hsmm categorical": (HSMM, {"max_duration": 6, "durations": "categorical", "rank": 2}, "gaussian"),
}


def estimators() -> Iterator[Case]:
    """One step of EM, six of them, and gradient steps: every parameter, scores and answers."""
    for name, (kind, choices, observed) in ESTIMATORS.items():
        for dtype, fitted in FITTED.items():
            settings = {**choices, "dtype": short(dtype), "random_state": 0, "tol": None}
            for steps in (1, 6):
                case = f"fits/{name}/{short(dtype)}/em {steps}"
                yield Case(case, _fit(kind, {**settings, "max_iter": steps}, observed, "em"), fitted)
        case = f"fits/{name}/float64/sgd"
        yield Case(case, _fit(kind, {**settings, "dtype": "float64", "max_iter": 2}, observed, "sgd"), 1e-9)


def _walks(observed: str) -> list[Any]:
    rng = np.random.default_rng(1 if observed == "categorical" else 0)  # of 0, two best paths are level
    means = np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 3.0]])
    found = []
    for _ in range(4):
        states = np.repeat(np.cumsum(rng.integers(1, 3, 5)) % 3, rng.integers(2, 6, 5))
        found.append(means[states] + 0.7 * rng.standard_normal((len(states), 2)))
    if observed == "categorical":
        return [(x[:, 0] > 1.5) + 2 * (x[:, 1] > 1.5) for x in found]
    found[0][3], found[1][2, 0] = np.nan, np.nan
    return found if observed == "gaussian" else [np.where(np.isnan(x), np.nan, x > 1.5) for x in found]


def _fit(kind: Any, settings: dict[str, Any], observed: str, algorithm: str) -> Callable[[], Numbers]:
    def make() -> Numbers:
        x = _walks(observed)
        model = kind(3, **settings).fit(x, algorithm=algorithm)
        parameters = {f"parameter.{name}": y.detach().clone() for name, y in model.model_.named_parameters()}
        return parameters | {
            "history": list(model.history_),
            "score": model.score_samples(x),
            "predicted": np.concatenate(model.predict(x)),
            "posterior": np.concatenate(model.predict_proba(x)),
        }

    return make
