"""What fits into memory, decided before a run starts, and what is said of a run that cannot."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from rankfold.data.clusters import uniform_clusters
from rankfold.errors import DomainError, UnsupportedError
from rankfold.models.catalog import build_model
from rankfold.models.config import FrameConfig, GrammarConfig, ModelConfig
from rankfold.planning import measure
from rankfold.planning.measure import GIB, available
from rankfold.training import memory_budget as memory
from rankfold.training.checkpoint import Progress
from rankfold.training.config import Config
from rankfold.training.loop import train
from rankfold.training.memory_budget import FLOAT, Budget, DataSizes, budget_in, fit, least_memory, meta_model
from rankfold.training.recipes import load_recipe
from tests.training.runs import DROPOUT, FAMILIES, replaced, tiny, write_corpus

TEXT = DataSizes(200, 30, 20)
DEVICES = ("cpu", "cuda")


def larger(family: str = "lhmm", **settings: Any) -> Config:
    sizes = {"num_states": 512, "rank": 64, "dim": 16, "tokens": 300, "eval_tokens": 500, "rounding": 8}
    return tiny(**{"family": family, **sizes, **settings})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_for_its_sizes(family: str) -> None:
    config = larger(family).model
    found = meta_model(config, 50)
    truth = build_model(config, 50, clusters=uniform_clusters(50, 4, seed=0) if family == "block" else None)
    assert {name: x.shape for name, x in found.named_parameters()} == {
        name: x.shape for name, x in truth.named_parameters()
    }
    assert all(x.is_meta for x in found.parameters())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("batching", ["length", "unsorted", "streams"])
def test_what_is_said_to_fit_does(family: str, device: str, graphs: bool, batching: str) -> None:
    """By the plan's own bytes, added up here; and more memory never makes for smaller parts."""
    dropout = {} if batching == "streams" else DROPOUT
    config = larger(family, batching=batching, graphs=graphs, precision="tf32", **dropout)
    least = least_memory(config, TEXT, device).total
    longest = {"length": 32, "unsorted": 30, "streams": config.data.window}[batching]
    batch = config.data.num_streams * config.data.window if batching == "streams" else config.data.tokens
    model = meta_model(config.model, TEXT.num_inputs)
    ways = model.plan(1, 1, device, "tf32").ways
    before = 0
    for bytes_for in (least, 11 * least // 10, 3 * least // 2, 2 * least, 3 * least, 100 * least):
        budget = fit(config, TEXT, device, bytes_for)
        part = budget.part_tokens or batch
        assert longest <= part <= batch
        assert part >= before or budget.graphs  # graphs take twice
        before = 0 if budget.graphs else part
        evaluated = budget.eval_tokens or config.data.eval_tokens
        assert evaluated >= (batch if batching == "streams" else TEXT.longest_held_out)
        for way in ways:
            copies = 2 if budget.graphs else 1
            trained = way.with_optimiser()
            assert trained.state_bytes + copies * (way.work_bytes + part * way.token_bytes) <= bytes_for
        assert budget.graphs == (budget.graphs and graphs and device == "cuda")
    assert fit(config, TEXT, device, 100 * least) == Budget(0, 0, graphs and device == "cuda")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("device", DEVICES)
def test_one_byte_less_than_needed_is_refused(family: str, device: str) -> None:
    config = larger(family, **DROPOUT)
    least = least_memory(config, TEXT, device).total
    assert fit(config, TEXT, device, least)
    with pytest.raises(UnsupportedError, match=rf"{family} of 512 states cannot be (trained|evaluated)"):
        fit(config, TEXT, device, least - 1)


def test_nobody_says_how_much_there_is() -> None:
    assert fit(larger(), TEXT, "cuda", None) == Budget()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("device", DEVICES)
def test_what_would_fit_fits(family: str, device: str) -> None:
    """Every setting the message names is taken at its word, and twice the size is not."""
    config = larger(family, neural=family != "hmm", memory=1.0)
    total = least_memory(config, TEXT, device).total
    with pytest.raises(UnsupportedError) as caught:
        fit(config, TEXT, device, int(0.6 * total))
    text = str(caught.value)
    assert f"needs {total / GIB:.3g} GiB" in text
    assert f"train.memory is {int(0.6 * total) / GIB:.3g} GiB" in text
    named = re.findall(r"model\.(\w+)=(\w+)", text)
    assert "num_states" in dict(named)
    for name, value in named:
        own = int(value) if value.isdigit() else value == "true" if name == "neural" else value
        smaller = replaced(config, "model", **{name: own})
        assert fit(smaller, TEXT, device, int(0.6 * total))
        if isinstance(own, int) and not isinstance(own, bool):
            with pytest.raises(UnsupportedError):
                fit(replaced(config, "model", **{name: 2 * own}), TEXT, device, int(0.6 * total))


def test_nothing_would_fit() -> None:
    with pytest.raises(
        UnsupportedError, match="What would fit: no single size of the model, made smaller, does; take less of several"
    ):
        fit(larger(), TEXT, "cpu", 1000)


def test_an_evaluation_that_does_not_fit_is_named() -> None:
    """States that training drops are there when the model is evaluated, and a held-out sentence may be long."""
    config, text = larger(state_dropout=0.9), TEXT._replace(longest_held_out=5000)
    assert least_memory(config, text, "cpu").evaluating
    with pytest.raises(UnsupportedError, match="cannot be evaluated"):
        fit(config, text, "cpu", least_memory(config, text, "cpu").total - 1)


@pytest.mark.parametrize("family", ["hmm", "lhmm", "block"])
def test_an_evaluation_has_all_states(family: str) -> None:
    text = TEXT._replace(longest_held_out=10_000)
    dropped, whole = (least_memory(larger(family, state_dropout=p, feature_dropout=p), text, "cpu") for p in (0.9, 0.0))
    assert dropped == whole
    assert whole.evaluating


def test_an_optimiser_and_an_average_are_counted() -> None:
    config = larger()
    count = meta_model(config.model, TEXT.num_inputs).num_parameters
    assert least_memory(config, TEXT, "cpu").state >= 16 * count
    averaged = least_memory(replaced(config, "train", average=0.9), TEXT, "cpu")
    assert averaged.state - least_memory(config, TEXT, "cpu").state == 8 * count


def test_what_a_recipe_allows() -> None:
    assert available("cpu", 2.5) == available("cuda", 2.5) == int(2.5 * GIB)
    found = available("cpu")
    assert found is None or 0 < found < 2**50


def test_a_grammar_is_planned_for_the_larger_of_its_orders() -> None:
    """Batches of other shapes may take the other one."""
    config = load_recipe("rankpcfg-900-1800-ptb", ["train.graphs=false"])
    step, _ = memory._plans(config, DataSizes(10_000, 40, 40), "cuda")
    rows = config.data.batch_tokens(40) // 40
    ways = meta_model(config.model, 10_000).plan(rows, 40, "cuda", config.train.precision).ways
    assert {way.order for way in ways} == {"state", "rank"}
    assert step.peak_bytes == max(way.peak_bytes for way in ways)


def test_a_cpu_has_what_its_machine_and_container_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "available_bytes", lambda: 2400)
    assert available("cpu") == 2400
    assert available("cpu", 1.0) == GIB


def test_a_run_that_does_not_fit_leaves_the_folder_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_corpus(tmp_path / "data")
    monkeypatch.setattr(memory, "available", lambda device, asked: 1000)
    with pytest.raises(UnsupportedError, match=r"lhmm of 8 states cannot be trained: .* cpu has 9\.31e-07 GiB"):
        train(tiny(), data, tmp_path / "run")
    monkeypatch.undo()
    assert train(tiny(updates=1), data, tmp_path / "run").finished


@pytest.mark.parametrize(
    ("began", "now", "kept", "warned"),
    [
        ((0, 0), (0, 0), (0, 0), False),
        ((20, 30), (0, 0), (20, 30), False),
        ((20, 30), (25, 35), (20, 30), False),
        ((20, 30), (15, 35), (15, 30), True),
        ((0, 0), (15, 0), (15, 0), True),
    ],
)
def test_a_resumed_run_keeps_its_parts(
    began: tuple[int, int],
    now: tuple[int, int],
    kept: tuple[int, int],
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "fit", lambda *args: Budget(*now, False))
    said: list[str] = []
    progress = dataclasses.replace(Progress(update=3), part_tokens=began[0], eval_tokens=began[1])
    budget = memory.memory_budget(tiny(), TEXT, "cpu", progress, said.append)
    assert (budget.part_tokens, budget.eval_tokens) == kept == (progress.part_tokens, progress.eval_tokens)
    assert any("less memory" in line for line in said) == warned


def test_graphs_of_unsorted_batches_hold_more_than_their_tokens() -> None:
    """A shape is filled up to 16/9 of the budget, so whole batches need as much more memory with graphs."""

    def least(batching: str, *, graphs: bool) -> int:
        """Bytes from which on a batch is taken whole."""
        config = larger("lhmm", batching=batching, rounding=1)
        low, high = 0, 2**40
        while high - low > 1:
            middle = (low + high) // 2
            budget = budget_in(config, TEXT, "cuda", middle, graphs=graphs)
            low, high = (low, middle) if budget is not None and budget.part_tokens == 0 else (middle, high)
        return high

    step, _ = memory._plans(larger("lhmm"), TEXT, "cuda")
    more = (16 * 300 // 9 - 300) * step.token_bytes
    assert least("unsorted", graphs=False) == least("length", graphs=False)
    assert least("unsorted", graphs=True) - least("length", graphs=True) == pytest.approx(2 * more, rel=1e-3, abs=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_graphs_in_float64_fit_where_they_are_said_to(family: str) -> None:
    """Parts that graphs hold once and steps without them again, once more in twice the width; added up here."""
    config = larger(family, precision="tf32", **DROPOUT)
    least, model = least_memory(config, TEXT, "cuda").total, meta_model(config.model, TEXT.num_inputs)
    way = model.plan(1, 1, "cuda", "tf32").best
    found = []
    for eighths in range(8, 48):
        there = int(least * 2 ** (eighths / 8))
        budget = budget_in(config, TEXT, "cuda", there, graphs=True)
        if budget is not None:
            part = budget.part_tokens or config.data.tokens
            rest = there - way.state_bytes - 3 * (way.work_bytes + part * way.token_bytes)
            if budget.wide:
                assert rest >= way.work_bytes + part * way.token_bytes
                evaluated = budget.eval_tokens or config.data.eval_tokens
                assert rest >= FLOAT * way.parameters + way.eval_fixed_bytes + evaluated * way.eval_token_bytes
            found.append(budget.wide)
    assert set(found) == {False, True}


SIZES = {
    "hmm": ("num_states", "dim", "num_layers"),
    "lhmm": ("num_states", "rank", "dim", "num_layers"),
    "banded": ("num_states", "rank", "dim", "num_layers"),
    "block": ("num_states", "dim", "num_layers"),
    "rank": ("num_states", "rank", "dim", "num_layers"),
    "cpcfg": ("num_nonterminals", "num_preterminals", "latent_dim", "encoder_dim", "num_layers"),
    "tnpcfg": ("num_nonterminals", "num_preterminals", "rank", "num_layers"),
    "lpcfg": ("num_nonterminals", "num_preterminals", "rank"),
}


@pytest.mark.parametrize(("family", "name"), [(family, name) for family, names in SIZES.items() for name in names])
@pytest.mark.parametrize("size", [9_999_999_968, 2**62])
def test_sizes_by_mistake_are_refused_at_once(family: str, name: str, size: int) -> None:
    """By plans that make nothing of these sizes; and where products pass 2^63."""
    settings = {"family": family, name: size}
    with pytest.raises((UnsupportedError, DomainError), match=r"cannot be (trained|evaluated)|any memory|at most 100"):
        fit(Config(model=(GrammarConfig if "pcfg" in family else ModelConfig)(**settings)), TEXT, "cpu", 16 * GIB)


@pytest.mark.parametrize("family", ["frame_hmm", "lhsmm"])
@pytest.mark.parametrize("name", ["num_states", "num_features", "dim", "num_layers"])
@pytest.mark.parametrize("size", [9_999_999_968, 2**62])
def test_sizes_of_frames_by_mistake_are_refused_at_once(family: str, name: str, size: int) -> None:
    settings = {"observations": "bernoulli", "num_features": 5, "neural": True, name: size}
    with pytest.raises((UnsupportedError, DomainError), match=r"cannot be (trained|evaluated)|any memory|at most 100"):
        _fit(FrameConfig(family, **settings))


def _fit(model: FrameConfig) -> Budget:
    return fit(Config(model=model), DataSizes(model.num_features, 30, lengths=(20, 30)), "cpu", 16 * GIB)
