"""The sizes that are measured, the ceilings, the spread of times, and the exponent of a sweep."""

import dataclasses
import math
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch

from benchmarks.steps import baselines as ceilings
from benchmarks.steps.baselines import Ceilings, measure_ceilings
from benchmarks.steps.cases import Case
from benchmarks.steps.scaling import PowerLaw, default_sizes, fit, summary, sweep_cases
from benchmarks.steps.tables import grammar_cases, million_cases, modest_cases, published_cases
from rankfold.errors import DomainError, UnsupportedError
from rankfold.models import ModelConfig
from rankfold.models.config import Family, GrammarConfig, GrammarFamily, PlanName
from rankfold.params.dropout import num_kept
from rankfold.planning import measure as timing
from rankfold.planning.cost import Work
from rankfold.planning.measure import Spread, Turn, held_bytes, in_turns, peak_mib, release

CPU = torch.device("cpu")


def test_the_published_rows() -> None:
    rows = published_cases()
    assert [case.published_ms for case in rows] == [55.0, 64.6, 104.4, 42.1, 56.7, 80.1, 44.6, 32.2, 36.5, 39.1]
    assert [case.published_mib for case in rows] == [1962, 3596, 6722, 3145, 4358, 6837, 796, 6276, 10876, None]
    families = "rank rank rank lhmm lhmm hmm banded block block hmm"
    assert [case.config.family for case in rows] == families.split()
    kept = [num_kept(case.config.num_states // 128, case.config.state_dropout) for case in rows[7:9]]
    assert kept == [115, 128]
    assert "128 clusters, 115 of 128 kept" in rows[7].name
    assert "rank 2,048, dropout 0.1" in rows[0].name
    assert [case.config.logit_dropout for case in rows[:3]] == [0.1] * 3
    assert [(case.batch, case.length) for case in rows[7:]] == [(8, 32), (16, 32), (256, 32)]
    assert [case.given for case in rows] == [False] * 9 + [True]
    assert not any(case.dropout for case in rows[3:7])
    half, last = million_cases()[len(rows) :]
    assert (half.config.num_states, half.config.rank, half.update, last.update) == (2**19, 512, True, False)
    assert (last.config.num_states, last.config.rank, last.published_ms) == (2**20, 1024, None)


def test_every_family_is_in_the_modest_table() -> None:
    families = [case.config.family for case in modest_cases()]
    assert sorted(families) == sorted((*get_args(Family), *get_args(GrammarFamily)))


def test_the_published_grammars() -> None:
    rows = grammar_cases()
    assert [case.published_ms for case in rows] == [102.1, 74.9, 103.7, 104.9, 176.1, 376.7, 416.6]
    assert [case.published_mib for case in rows] == [4664, 4644, 4347, 1788, 354, 60341, 67238]
    assert [case.name for case in rows] == [
        "rankpcfg, 4,500 / 9,000 symbols, rank 1,000",
        "rankpcfg, 4,500 / 9,000 symbols, rank 1,000",
        "spcfg, 4,096 / 8,192 symbols",
        "tnpcfg, 250 / 500 symbols, rank 500",
        "npcfg, 30 / 60 symbols",
        "lpcfg, 100 / 200 symbols, rank 32",
        "npcfg, 100 / 200 symbols",
    ]
    assert [(case.batch, case.length, case.num_words) for case in rows[:3]] == [
        (16, 40, 10_000),
        (16, 20, 10_000),
        (16, 40, 10_000),
    ]
    assert all((case.batch, case.length, case.num_words) == (4, 40, 10_000) for case in rows[3:])
    assert [case.config.dim for case in rows] == [256, 256, 512, 256, 256, 256, 256]


def test_a_plan_needs_no_memory() -> None:
    """The last row would take a terabyte."""
    case = Case(ModelConfig(family="lhmm", num_states=2**30, rank=64, dim=128))
    assert case.plan(CPU, "float32").peak_bytes > 2**40


def test_given_tables_cost_the_scan_alone() -> None:
    case = Case(ModelConfig(family="hmm", num_states=50, neural=False), batch=2, length=3, num_words=9)
    parts, made = (
        [part.name for part in each.plan(CPU, "float32").parts]
        for each in (case, case._replace(config=dataclasses.replace(case.config, neural=True)))
    )
    assert all(name.startswith("scan") for name in parts)
    assert set(parts) < set(made)


@pytest.mark.parametrize(
    "free",
    [
        Case(ModelConfig(family="rank", num_states=64, rank=8, dim=4)),
        Case(GrammarConfig(family="rankpcfg", num_nonterminals=300, num_preterminals=600, rank=8, dim=4)),
        Case(GrammarConfig(family="tnpcfg", num_nonterminals=3, num_preterminals=6, rank=300, dim=4)),
    ],
    ids=lambda case: case.name,
)
def test_the_order_of_a_rank_space_model_is_settled(free: Case) -> None:
    settled = free.with_order(CPU, "float32")
    assert settled.config.plan == free.plan(CPU, "float32").order
    for order in get_args(PlanName)[1:]:
        asked = free.in_order(order)
        assert asked.with_order(CPU, "float32") == asked
        assert asked.plan(CPU, "float32").order == order


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (Case(ModelConfig(), batch=0), "batch is 0"),
        (Case(ModelConfig(), length=-1), "length is -1"),
        (Case(ModelConfig(), num_words=0), "num_words is 0"),
        (Case(GrammarConfig(), length=1), "one word has no tree"),
        (Case(ModelConfig(family="block", num_clusters=32), num_words=31), "32 clusters needs a word"),
    ],
)
def test_sizes_that_cannot_be(case: Case, words: str) -> None:
    with pytest.raises(DomainError, match=words):
        case.validate()


def test_choices_without_a_reference_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="lhmm with neural = False"):
        Case(ModelConfig(family="lhmm", neural=False)).validate()
    for config in (GrammarConfig(family="npcfg", neural=False), GrammarConfig(single_words=True)):
        with pytest.raises(UnsupportedError, match="free tables or of single words"):
            Case(config).validate()


def test_the_floor_is_arithmetic_or_memory_part_by_part() -> None:
    plan: Any = SimpleNamespace(parts=(Work("a", 400, 10, 7), Work("b", 10, 300, 7)))
    floor = Ceilings(100.0, {"float32": 200.0, "bf16": 400.0})
    assert floor.floor_ms(plan, "float32") == pytest.approx(1e3 * (400 / 200 + 300 / 100))
    assert floor.floor_ms(plan, "bf16") == pytest.approx(1e3 * (400 / 400 + 300 / 100))


def test_ceilings_count_what_is_read_written_and_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "COPY", {"cpu": 4000})
    monkeypatch.setattr(ceilings, "SIDE", {"cpu": 10})
    monkeypatch.setattr(ceilings, "host_time", lambda work, device: 2e3)
    found = measure_ceilings(CPU, ["float32", "bf16"])
    assert found == Ceilings(2 * 4000 / 2, {"float32": 1000 / 2, "bf16": 1000 / 2})


def test_spreads_are_medians_and_quartiles() -> None:
    assert Spread.of([5.0, 1.0, 2.0, 4.0, 3.0]) == Spread(3.0, 2.0, 4.0, 5)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0, 1)


def test_warm_up_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    ticks = iter([0.0, 1.0, 10.0, 13.0])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(ticks))
    assert timing.host_times(lambda: calls.append(1), CPU, repeats=2, warm=3) == Spread(2000.0, 1500.0, 2500.0, 2)
    assert len(calls) == 5


def test_what_is_compared_takes_turns() -> None:
    """One call of each in turn; who has fewer repeats sits out, evenly; warm-ups come first and do not count."""
    calls: list[str] = []

    def turn(name: str, ms: float, repeats: int, warm: int) -> Turn:
        return Turn(lambda: calls.append(name) or ms, repeats, warm)  # type: ignore[func-returns-value]

    found = in_turns({"a": turn("a", 2.0, 6, 1), "b": turn("b", 3.0, 6, 2), "c": turn("c", 5.0, 2, 0)})
    assert "".join(calls) == "abb" + "ab" + "ab" + "abc" + "ab" + "ab" + "abc"
    assert found == {"a": Spread(2.0, 2.0, 2.0, 6), "b": Spread(3.0, 3.0, 3.0, 6), "c": Spread(5.0, 5.0, 5.0, 2)}


def test_the_exponent_of_a_power_law_is_found() -> None:
    sizes = [64, 128, 512, 4096]
    law = fit(sizes, [3e-4 * size**1.7 for size in sizes])
    assert law is not None
    assert law == pytest.approx(PowerLaw(1.7, 3e-4))
    assert law.at(100) == pytest.approx(3e-4 * 100**1.7)
    # Least squares in logarithms: errors of opposite sign at both ends of a symmetric range cancel.
    noisy = fit([1, 10, 100], [2.0, 20 / math.e, 200.0])
    assert noisy is not None
    assert noisy.exponent == pytest.approx(1.0)
    assert fit([8], [1.0]) is None
    assert fit([8, 8], [1.0, 2.0]) is None


def test_a_sweep_changes_one_size() -> None:
    case = Case(ModelConfig(family="lhmm", num_states=8, rank=4))
    assert [each.config.num_states for each in sweep_cases(case, "states", [32, 8, 32])] == [8, 32]
    assert [each.config.rank for each in sweep_cases(case, "rank", [2, 3])] == [2, 3]
    lengths = sweep_cases(case, "length", [5, 9])
    assert [(each.length, each.config) for each in lengths] == [(5, case.config), (9, case.config)]


def test_the_states_of_a_grammar_are_its_nonterminals() -> None:
    case = Case(GrammarConfig(family="lpcfg", num_nonterminals=8, num_preterminals=9, rank=4))
    configs: list[Any] = [each.config for each in sweep_cases(case, "states", [32, 8])]
    assert [(config.num_nonterminals, config.num_preterminals) for config in configs] == [(8, 16), (32, 64)]
    assert [each.config.rank for each in sweep_cases(case, "rank", [2, 3])] == [2, 3]
    pairs, ranked = default_sizes(case, "states", "cpu"), Case(GrammarConfig(family="rankpcfg"))
    assert max(pairs) < max(default_sizes(ranked, "states", "cpu"))
    assert default_sizes(ranked, "rank", "cuda") != default_sizes(Case(ModelConfig()), "rank", "cuda")


def test_sweeps_that_cannot_be() -> None:
    with pytest.raises(UnsupportedError, match="spcfg has no rank"):
        sweep_cases(Case(GrammarConfig(family="spcfg")), "rank", [1, 2])
    with pytest.raises(UnsupportedError, match="hmm has no rank"):
        sweep_cases(Case(ModelConfig(family="hmm")), "rank", [1, 2])
    with pytest.raises(DomainError, match="at least 2"):
        sweep_cases(Case(ModelConfig()), "states", [8, 8])
    with pytest.raises(DomainError, match="num_states is 0"):
        sweep_cases(Case(ModelConfig()), "states", [8, 0])


def test_rows_without_times_are_no_points() -> None:
    def record(states: int, ms: float | None, precision: str) -> dict[str, Any]:
        time = None if ms is None else {"median": ms}
        return {
            "num_states": states,
            "order": "state",
            "precision": precision,
            "step_ms": time,
            "reference_ms": None,
        }

    rows = [record(10, 1.0, "tf32"), record(100, 100.0, "tf32"), record(1000, None, "tf32"), record(10, 1.0, "bf16")]
    more = summary("states", [*rows[:2], record(1000, 1000.0, "tf32")])["curves"][0]
    assert (more["exponent"], more["last_exponent"]) == pytest.approx((1.5, 1.0))
    curves = summary("states", rows)["curves"]
    assert [(curve["precision"], curve["code"], curve["sizes"]) for curve in curves] == [
        ("tf32", "rankfold", [10, 100]),
        ("bf16", "rankfold", [10]),
    ]
    assert curves[0]["exponent"] == pytest.approx(2.0)
    assert curves[1]["exponent"] is None


def test_each_order_has_a_curve_and_the_reference_one() -> None:
    def record(size: int, order: str, ms: float) -> dict[str, Any]:
        return {
            "num_states": None,
            "num_nonterminals": size,
            "order": order,
            "precision": "float32",
            "step_ms": {"median": ms},
            "reference_ms": {"median": 7.0 * size},
        }

    rows = [record(size, order, ms) for size in (10, 100) for order, ms in (("rank", 1.0), ("state", 2.0 * size))]
    curves = summary("states", rows)["curves"]
    assert [(curve["code"], curve["sizes"], curve["ms"]) for curve in curves] == [
        ("rankfold, rank space", [10, 100], [1.0, 1.0]),
        ("rankfold, state space", [10, 100], [20.0, 200.0]),
        ("reference", [10, 100], [70.0, 700.0]),
    ]
    assert [curve["exponent"] for curve in curves] == pytest.approx([0.0, 1.0, 1.0])


def test_the_peak_of_a_process() -> None:
    """A table of 64 MiB that is gone afterwards is in the peak, above what was there before; the next has its own."""
    cpu = torch.device("cpu")
    release(cpu)  # of what tests before have left, as a row does before its model is made
    held = held_bytes(cpu)
    most = peak_mib(lambda: torch.ones(2**24).sum(), cpu, held)
    if most is None:
        pytest.skip("this system does not tell a process its peak")
    assert 60 < most < 120
    least = peak_mib(lambda: torch.ones(1), cpu, held)
    assert least is not None
    assert least < 40
