"""EM of words and of mini-batches: counts by enumeration, steps over everything that never lose, steps in parts."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rankfold import errors
from rankfold.data.batch import Batch
from rankfold.data.clusters import Clusters
from rankfold.errors import DomainError, UnsupportedError
from rankfold.models import HMM, ModelConfig, build_model
from rankfold.models.block_hmm import BlockHMM
from rankfold.params.prior import Prior
from rankfold.training.batch_em import BatchEM, BlockTables, GraphedCounts, StateTables, mix, tables_of
from rankfold.training.loop import train
from rankfold.training.memory_budget import Budget
from rankfold.training.setup import optimizer
from rankfold.training.shapes import Shapes
from tests.oracles import chain as oracle
from tests.training.replays import stand_in
from tests.training.runs import FAMILIES, NUM_WORDS, metrics, tiny, write_corpus

EXACT = {"rtol": 1e-9, "atol": 1e-12}  # float64, a few hundred terms
WORDS = torch.tensor([[2, 0, 3, 1], [4, 1, 0, 0], [3, 3, 1, 0]])
LENGTHS = torch.tensor([4, 2, 3])


def hmm(z: int = 3, v: int = 5) -> HMM:
    g = torch.Generator().manual_seed(0)
    tables = [torch.rand(shape, generator=g, dtype=torch.float64) + 0.1 for shape in ((z,), (z, z), (z, v))]
    return HMM.from_tables(*(x / x.sum(-1, keepdim=True) for x in tables))


def block() -> BlockHMM:
    config = ModelConfig(family="block", num_states=6, num_clusters=3, neural=False)
    clusters = Clusters(torch.tensor([0, 1, 2, 1, 0]), 3)
    model = build_model(config, 5, clusters=clusters, seed=3).double()
    assert isinstance(model, BlockHMM)
    for x in model.parameters():
        x.data.copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64))
    return model


def dense_tables(model: BlockHMM) -> tuple[Tensor, Tensor, Tensor]:
    """Start, transitions and emissions of all states, written out."""
    parts, every = model.parts(), torch.arange(6)
    tables = parts.dynamics.log_initial.flatten(), parts.dynamics.log_rows(every), parts.emission.log_rows(every)
    return tuple(x.detach().exp() for x in tables)  # type: ignore[return-value]


def counted(tables: Any, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
    """log Z, and the expected counts by themselves."""
    sums = tables.zeros()
    with torch.no_grad():
        return tables.count(batch, tables.model.parts(), sums), sums


def enumerated(start: Tensor, transition: Tensor, emission: Tensor) -> list[Tensor]:
    """The expected uses of all three tables, path by path."""
    uses = [torch.zeros_like(x) for x in (start, transition, emission)]
    for row, length in zip(WORDS.tolist(), LENGTHS.tolist(), strict=True):
        log_obs = [[oracle.log(float(emission[z, word])) for z in range(len(start))] for word in row[:length]]
        weights = oracle.paths([oracle.log(x) for x in start.tolist()], transition.tolist(), log_obs)
        total = oracle.log_sum_exp(list(weights.values()))
        for path, weight in weights.items():
            share = oracle.exp(weight - total)
            uses[0][path[0]] += share
            for source, target in itertools.pairwise(path):
                uses[1][source, target] += share
            for state, word in zip(path, row[:length], strict=True):
                uses[2][state, word] += share
    return uses


def test_counts_of_an_hmm_equal_the_enumeration() -> None:
    model = hmm()
    log_z, counts = counted(StateTables(model), Batch(WORDS, LENGTHS))
    tables = [x.detach().softmax(-1) for x in (model.dynamics.log_initial, model.dynamics.log_transition)]
    for own, expected in zip(
        counts, enumerated(*tables, model.emission.log_emission.softmax(-1).detach()), strict=True
    ):
        torch.testing.assert_close(own.detach(), expected, **EXACT)
    torch.testing.assert_close(log_z, model.log_likelihood(Batch(WORDS, LENGTHS)).detach(), **EXACT)


def test_counts_and_maxima_of_blocks_equal_the_enumeration() -> None:
    """The M step, too: shares of each state's own words, transitions to all states."""
    model = block()
    tables = BlockTables(model)
    before = dense_tables(model)
    _, counts = counted(tables, Batch(WORDS, LENGTHS))
    start, transition, emission = enumerated(*before)
    torch.testing.assert_close(counts[0].detach().flatten(), start, **EXACT)
    torch.testing.assert_close(counts[1].detach().reshape(6, 6), transition, **EXACT)
    for word, cluster in enumerate([0, 1, 2, 1, 0]):
        torch.testing.assert_close(counts[2][word].detach(), emission[2 * cluster : 2 * cluster + 2, word], **EXACT)
    like = tables.as_counts(counts)  # the tables themselves: their maximum changes nothing
    tables.maximise(like, Prior())
    for x, y in zip(dense_tables(model), before, strict=True):
        torch.testing.assert_close(x, y, **EXACT)
    tables.maximise(counts, Prior())
    for x, used in zip(dense_tables(model), (start, transition, emission), strict=True):
        expected = used / used.sum(-1, keepdim=True)
        torch.testing.assert_close(x[used.sum(-1) > 0] if x.ndim > 1 else x, _used(expected, used), **EXACT)


def _used(expected: Tensor, used: Tensor) -> Tensor:
    return expected[used.sum(-1) > 0] if used.ndim > 1 else expected


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["hmm", "block"])
def test_whole_steps_never_lose(kind: str, smoothing: float) -> None:
    """The log-likelihood, with smoothing plus that many times the logs of all entries."""
    model: Any = hmm() if kind == "hmm" else block()
    tables: Any = StateTables(model) if kind == "hmm" else BlockTables(model)
    values = []
    for _ in range(12):
        with torch.no_grad():
            log_z, counts = counted(tables, Batch(WORDS, LENGTHS))
            entries = dense_tables(model) if kind == "block" else [
                x.softmax(-1) for x in (model.dynamics.log_initial, model.dynamics.log_transition,
                                        model.emission.log_emission)
            ]  # fmt: skip
            prior = sum(float(x[x > 0].log().sum()) for x in entries) if smoothing else 0.0
            values.append(float(log_z.sum()) + smoothing * prior)
            tables.maximise(counts, Prior(smoothing))
    assert all(after >= before - 1e-10 for before, after in itertools.pairwise(values))
    assert values[-1] > values[0] + 0.5


def test_a_step_with_momentum_moves_counts_part_of_the_way() -> None:
    model = hmm()
    tables = StateTables(model)
    _, counts = counted(tables, Batch(WORDS, LENGTHS))
    before = [x.detach().softmax(-1) for x in (model.dynamics.log_initial, model.dynamics.log_transition)]
    tables.maximise(mix(tables.as_counts(counts), counts, 0.25), Prior())
    for x, old, own in zip(
        (model.dynamics.log_initial, model.dynamics.log_transition), before, counts[:2], strict=True
    ):
        new = own.detach() / own.detach().sum(-1, keepdim=True)
        torch.testing.assert_close(x.detach().softmax(-1), 0.75 * old + 0.25 * new, **EXACT)


def free_model(family: str, seed: int = 0, z: int = 3, rank: int = 2, band: int = 1, v: int = 5) -> Any:
    """A model in free tables, drawn far from uniform."""
    config = ModelConfig(family=family, num_states=z, rank=rank, band=band, neural=False)  # type: ignore[arg-type]
    model = build_model(config, v, seed=seed).double()
    g = torch.Generator().manual_seed(seed)
    for x in model.parameters():
        x.data.copy_(torch.randn(x.shape, generator=g, dtype=torch.float64))
    return model


def derivations(family: str, tables: list[Any], words: list[int], band: int) -> Any:
    """Every way to say the words, hidden ranks included: its probability, and the entries of tables that it uses."""
    if family == "rank":
        start, rank, state, word = tables
        size, num = rank.shape

        def on(t: int, z: int, p: float, used: list[Any]) -> Any:
            for r in range(num):
                q, more = p * rank[z, r] * word[r, words[t]], [*used, (1, z, r), (3, r, words[t])]
                if t + 1 == len(words):
                    yield q, more
                    continue
                for y in range(size):
                    yield from on(t + 1, y, q * state[y, r], [*more, (2, y, r)])

        for z in range(size):
            yield from on(0, z, start[z], [(0, z)])
        return
    start, choice, target, word = tables
    size, num = target.shape

    def at(t: int, z: int, p: float, used: list[Any]) -> Any:
        p, used = p * word[z, words[t]], [*used, (3, z, words[t])]
        if t + 1 == len(words):
            yield p, used
            return
        for c in range(choice.shape[1]):
            reached = (
                [(y, target[y, c], [(2, y, c)]) for y in range(size)] if c < num else [(z + c - num - band, 1.0, [])]
            )
            for y, q, more in reached:
                if 0 <= y < size:
                    yield from at(t + 1, y, p * choice[z, c] * q, [*used, (1, z, c), *more])

    for r in range(num):
        for z in range(size):
            yield from at(0, z, start[r] * target[z, r], [(0, r), (2, z, r)])


def table_values(tables: Any) -> list[Any]:
    """The distributions of a model in free tables, as arrays."""
    parts = [tables.factors] if hasattr(tables, "factors") else [tables.dynamics, tables.observation]
    return [table.value.numpy() for part in parts for table in part.tables().values()]


@pytest.mark.parametrize("family", ["lhmm", "banded", "rank"])
def test_steps_with_hidden_ranks_equal_the_enumeration(family: str) -> None:
    """Counts and shares of every table, from every derivation in plain numpy; twice, and with smoothing."""
    for seed, smoothing in ((0, 0.0), (1, 0.4)):
        model = free_model(family, seed)
        tables = tables_of(model)
        for _ in range(2):
            before = table_values(tables)
            uses, log_z = [np.zeros_like(x) for x in before], []
            for row, length in zip(WORDS.tolist(), LENGTHS.tolist(), strict=True):
                found = list(derivations(family, before, row[:length], band=1))
                total = sum(p for p, _ in found)
                log_z.append(np.log(total))
                for p, used in found:
                    for table, *entry in used:
                        uses[table][tuple(entry)] += p / total
            with torch.no_grad():
                own_z, counts = counted(tables, Batch(WORDS, LENGTHS))
            np.testing.assert_allclose(own_z.numpy(), log_z, rtol=1e-10)
            for own, expected in zip(counts, uses, strict=True):
                np.testing.assert_allclose(own.numpy(), expected, rtol=1e-9, atol=1e-12)
            tables.maximise(counts, Prior(smoothing))
            inside = [np.ones_like(x, dtype=bool) for x in before]
            if family == "banded":
                inside[1][0, 2] = inside[1][2, 4] = False  # cells of the band outside the matrix
            for own, used, old, axis, there in zip(
                table_values(tables), uses, before, (0, 1, 0, 1), inside, strict=True
            ):
                smoothed = np.where(there, used + smoothing, 0.0)
                total = smoothed.sum(axis, keepdims=True)
                expected = np.where(total > 0, smoothed / np.where(total > 0, total, 1), old)
                np.testing.assert_allclose(own, expected, rtol=1e-9, atol=1e-12)


def test_whole_steps_with_hidden_ranks_never_lose_in_any_size() -> None:
    """60 models of random sizes and sentences: the log-likelihood, with smoothing plus the logs of all entries."""
    rng = np.random.default_rng(0)
    for number in range(60):
        family = ("lhmm", "banded", "rank")[number % 3]
        z, rank, band, v = (int(n) for n in rng.integers((1, 1, 0, 2), (8, 6, 4, 7)))
        model, smoothing = free_model(family, number, z, rank, band, v), float(rng.choice([0.0, 0.2]))
        tables, lengths = tables_of(model), torch.from_numpy(rng.integers(1, 9, 5))
        batch = Batch(torch.from_numpy(rng.integers(0, v, (5, 8))), lengths)
        values = []
        for _ in range(6):
            with torch.no_grad():
                log_z, counts = counted(tables, batch)
            entries = np.concatenate([x.ravel() for x in table_values(tables)])
            prior = smoothing * np.log(entries[entries > 0]).sum() if smoothing else 0.0
            values.append(float(log_z.sum()) + prior)
            tables.maximise(counts, Prior(smoothing))
        steps = np.diff(values)
        assert (steps >= -1e-9).all(), (number, family, z, rank, band, v, steps)
        assert z == 1 or values[-1] > values[0]


def test_networks_have_no_step() -> None:
    for family in ("hmm", "lhmm", "banded", "rank"):
        config = ModelConfig(family=family, num_states=4, rank=2, dim=4, num_layers=1)  # type: ignore[arg-type]
        with pytest.raises(UnsupportedError, match=r"networks make the tables(.|\n)*model\.neural=false"):
            tables_of(build_model(config, 5))  # type: ignore[arg-type]


def test_free_tables_begin_apart() -> None:
    """With a spread of 1; as the papers' code, all states nearly alike, from which EM does not find apart."""
    sizes: dict[str, Any] = {"num_states": 40, "rank": 20, "neural": False}
    for family in ("hmm", "lhmm", "banded"):
        for init, low, high in (("spread", 0.9, 1.1), ("xavier", 0.1, 0.2)):
            model = build_model(ModelConfig(family=family, init=init, **sizes), 50)  # type: ignore[arg-type]
            tables = {name: x for name, x in model.named_parameters() if x.ndim == 2 and "log_band" not in name}
            assert len(tables) == (2 if family == "hmm" else 3)
            for name, x in tables.items():
                assert low < float(x.detach().std()) < high, (family, init, name)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("family", FAMILIES)
def test_mini_batches_come_near_whole_steps(family: str, data: Path, tmp_path: Path) -> None:
    """A third of the passes, nearly the same training perplexity; words that a batch lacks keep their probability."""
    settings = {"family": family, "neural": False, "optimizer": "em", "log_every": 1}
    whole = train(tiny(**settings, updates=30, evaluate_every=30), data, tmp_path / "whole")
    in_parts = {"momentum": 0.8, "updates": 90, "evaluate_every": 90, "accumulate": 2, "schedule": "constant"}
    parts = train(tiny(**settings, **in_parts), data, tmp_path / "parts")
    values = [record["train_perplexity"] for record in metrics(whole.run) if "train_perplexity" in record]
    assert all(after <= before * (1 + 1e-6) for before, after in itertools.pairwise(values))
    assert parts.best_valid < values[0]
    last = [record["train_perplexity"] for record in metrics(parts.run) if "train_perplexity" in record][-8:]
    assert sum(last) / len(last) < values[0] - 0.9 * (values[0] - values[-1])


def em_steps(family: str, *, momentum: float = 0.5) -> BatchEM:
    config = tiny(family=family, neural=False, optimizer="em", momentum=momentum, smoothing=0.1, schedule="constant")
    clusters = Clusters(torch.arange(NUM_WORDS) % 4, 4)
    model: Any = build_model(config.model, NUM_WORDS, clusters=clusters if family == "block" else None).double()

    def never(batches: list[Batch], what: str) -> Any:
        raise AssertionError(what)

    return BatchEM(model, optimizer(model, config.train), config, Budget(), never, 200)


def updates() -> list[list[Batch]]:
    """Three updates of two batches, of other sizes, widths and lengths."""
    draw = torch.Generator().manual_seed(0)
    shapes = [[(3, 7), (2, 13)], [(4, 8), (5, 6)], [(1, 16), (2, 3)]]
    return [
        [
            Batch(
                torch.randint(NUM_WORDS, shape, generator=draw),
                torch.randint(1, shape[1] + 1, shape[:1], generator=draw),
            )
            for shape in each
        ]
        for each in shapes
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_captured_counts_give_the_updates_of_plain_ones(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes filled up, sums of two batches, running counts; an update in doubt is repeated without graphs."""
    stand_in(monkeypatch)
    plain, captured, doubtful = em_steps(family), em_steps(family), em_steps(family)
    for one in (captured, doubtful):
        one.graphs = GraphedCounts(one.model, one.tables, one.sums, Shapes(one.config.data), "float32")
    repeated, counted = [], doubtful._counted
    monkeypatch.setattr(captured, "_counted", lambda *_: pytest.fail("this update ran without graphs"))
    monkeypatch.setattr(doubtful, "_counted", lambda *x: [repeated.append(1), counted(*x)][1])
    for number, batches in enumerate(updates()):
        tokens = sum(batch.num_tokens for batch in batches)
        values = [one(batches, tokens, number)[0] for one in (plain, captured)]
        if number == 1:  # a use too large, or a posterior that a graph cannot vouch for
            with monkeypatch.context() as patch:
                patch.setattr(doubtful.tables, "count", lost(doubtful.tables.count))
                values.append(doubtful(batches, tokens, number)[0])
        else:
            values.append(doubtful(batches, tokens, number)[0])
        assert values == [pytest.approx(values[0], rel=1e-12)] * 3
    assert len(captured.graphs.shapes) == 2  # type: ignore[union-attr]
    assert repeated == [1]
    for one in (captured, doubtful):
        for x, y in zip(one.model.parameters(), plain.model.parameters(), strict=True):
            torch.testing.assert_close(x, y, **EXACT)


def test_the_precision_of_a_run_is_that_of_its_counts() -> None:
    """On a CPU, bfloat16 alone rounds anything: sums differ by its rounding, and are otherwise alike."""
    found = []
    for precision in ("float32", "bf16"):
        one = em_steps("hmm")
        one.model.float()
        one.config = dataclasses.replace(one.config, train=dataclasses.replace(one.config.train, precision=precision))
        one(updates()[0], 50, 0)
        found.append(one.sums[1])
    error = float((found[0] - found[1]).abs().sum() / found[0].sum())
    assert 1e-5 < error < 2e-2


def lost(count: Any) -> Any:
    """Counts that are NaN while a graph replays."""

    def found(batch: Batch, parts: Any, sums: Any, *rest: Any) -> Tensor:
        log_z: Tensor = count(batch, parts, sums, *rest)
        if not errors.may_look(log_z):
            sums[0].fill_(float("nan"))
        return log_z

    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_words_that_the_first_batch_lacks_stay_possible(family: str, data: Path, tmp_path: Path) -> None:
    settings = {"family": family, "neural": False, "optimizer": "em", "momentum": 0.5, "tokens": 9, "updates": 4}
    assert train(tiny(**settings, evaluate_every=1), data, tmp_path / "run").best_valid < NUM_WORDS


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"family": "lhmm", "neural": True}, "with networks.*hmm, lhmm, banded, block, rank"),
        ({"family": "lhmm", "neural": False, "feature_dropout": 0.2}, "without dropout"),
        ({"family": "hmm", "neural": True}, "with networks"),
        ({"family": "hmm", "neural": False, "state_dropout": 0.2}, "without dropout"),
        ({"family": "hmm", "neural": False, "batching": "streams"}, "whole sentences"),
        ({"family": "hmm", "neural": False, "momentum": 1.0}, "below 1"),
    ],
)
def test_what_em_is_not_for(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(DomainError, match=words):
        tiny(optimizer="em", **settings)
    with pytest.raises(DomainError, match=r"momentum is 0\.5, but optimizer"):
        tiny(momentum=0.5)
