"""The same model with other variables summed out first: one log Z, a row each, and how they compare."""

from typing import Any

import pytest
import torch

from benchmarks.steps import command, row
from benchmarks.steps.baselines import Ceilings
from benchmarks.steps.cases import Case
from benchmarks.steps.command import run_cases
from benchmarks.steps.row import TIMES, Settings, measure_rows
from rankfold.models import ModelConfig
from rankfold.models.config import GrammarConfig
from rankfold.models.pcfg import PCFG
from rankfold.planning.measure import Spread

CPU = torch.device("cpu")
SETTINGS = Settings(CPU, Ceilings(1e10, {"float32": 1e10}), repeats=2)
GRAMMAR = Case(GrammarConfig(num_nonterminals=7, num_preterminals=9, rank=3, dim=4), 2, 5, 20)
ORDERS = [GRAMMAR.in_order("rank"), GRAMMAR.in_order("state")]


def test_orders_have_the_same_log_z_and_their_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = row.in_turns

    def slower(turns: Any) -> Any:
        """State space three times as slow as rank space, five times in its recursion."""
        factor = {("rank", "step"): 1, ("rank", "recursion"): 1, ("state", "step"): 3, ("state", "recursion"): 5}
        return {name: Spread(2.0 * factor.get(name, 7), 1.0, 9.0, 2) for name in honest(turns)}

    monkeypatch.setattr(row, "in_turns", slower)
    rank, state = measure_rows(ORDERS, "float32", SETTINGS)
    assert [(each["order"], each["plans"], each["passed"]) for each in (rank, state)] == [
        ("rank", ["rank"], True),
        ("state", ["state"], True),
    ]
    assert rank["against"] is None
    assert (state["against"]["order"], state["against"]["step_ratio"], state["against"]["recursion_ratio"]) == (
        "rank",
        3.0,
        5.0,
    )
    assert 0 <= state["against"]["error"] <= 1e-6
    assert rank["reference_ms"] == state["reference_ms"]  # one reference for both
    assert (rank["ratio"], state["ratio"]) == (7.0, 7 / 3)


def test_each_order_is_run_as_it_is_named_and_all_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules of rank space have no head."""
    heads: dict[str, set[bool]] = {}
    seen: list[Any] = []
    honest, turns = PCFG.potentials, row.in_turns

    def spy(self: PCFG, *arguments: Any, **choices: Any) -> Any:
        found = honest(self, *arguments, **choices)
        heads.setdefault(self.config.plan, set()).add(len(found.rules.span_span.factors()) == 3)
        return found

    monkeypatch.setattr(PCFG, "potentials", spy)
    monkeypatch.setattr(row, "in_turns", lambda taken: seen.extend(taken) or turns(taken))
    measure_rows(ORDERS, "float32", SETTINGS)
    assert heads == {"rank": {False}, "state": {True}}
    ours = [(order, name) for order in ("rank", "state") for name in ("step", "recursion")]
    assert seen == [*ours, ("", "reference")]


def test_orders_that_differ_leave_no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is within its limit of float64, but not of the other: nobody knows which is wrong."""
    honest = row.log_z

    def apart(model: Any, *arguments: Any) -> torch.Tensor:
        value: torch.Tensor = honest(model, *arguments)
        return value * (1 + 1e-5) if model.config.plan == "state" else value

    monkeypatch.setattr(row, "log_z", apart)
    rows = measure_rows(ORDERS, "float32", SETTINGS._replace(reference=False))
    for each in rows:
        assert each["passed"] is False
        assert all(each[key] is None for key in TIMES)
        assert "state against rank space: off by 1e-05" in each["checks"][-1]["text"]


def test_auto_is_one_of_the_others() -> None:
    cases = [GRAMMAR.in_order(plan) for plan in ("rank", "state", "auto")]
    rows = measure_rows(cases, "float32", SETTINGS._replace(reference=False))
    chosen = GRAMMAR.plan(CPU, "float32").order
    assert {each["order"]: each["plans"] for each in rows} == {
        order: [order, "auto"] if order == chosen else [order] for order in ("rank", "state")
    }
    (alone,) = measure_rows(cases[2:], "float32", SETTINGS._replace(reference=False))
    assert (alone["order"], alone["plans"], alone["against"]) == (chosen, ["auto"], None)


def test_the_order_that_fails_alone_leaves_the_other_its_times(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = PCFG.log_z

    def wrong(self: PCFG, *arguments: Any, **choices: Any) -> torch.Tensor:
        return honest(self, *arguments, **choices) + (1e-3 if self.config.plan == "state" else 0.0)

    monkeypatch.setattr(PCFG, "log_z", wrong)
    rank, state = measure_rows(ORDERS, "float32", SETTINGS)
    assert (rank["passed"], state["passed"]) == (True, False)
    assert rank["step_ms"] is not None
    assert all(state[key] is None for key in TIMES)


def test_chains_of_ranks_have_orders_too_but_no_recursion() -> None:
    chain = Case(ModelConfig(family="rank", num_states=9, rank=3, dim=4), 2, 5, 20)
    rows = measure_rows([chain.in_order("state"), chain.in_order("rank")], "float32", SETTINGS)
    assert [each["order"] for each in rows] == ["state", "rank"]
    assert rows[1]["against"]["step_ratio"] > 0
    assert rows[1]["against"]["recursion_ratio"] is None


def test_neighbours_that_differ_in_their_plan_are_measured_together(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[Any]] = []

    def measure(cases: Any, *_: Any) -> list[dict[str, Any]]:
        seen.append(list(cases))
        return [{"passed": True}] * len(cases)

    monkeypatch.setattr(command, "measure_rows", measure)
    monkeypatch.setattr(command, "measure_ceilings", lambda *_: SETTINGS.ceilings)
    longer = [case._replace(length=6) for case in ORDERS]
    chain = Case(ModelConfig(family="hmm", num_states=9, dim=4), 2, 5, 20)
    run_cases([*ORDERS, *longer, chain], ["float32"], CPU)
    assert seen == [ORDERS, longer, [chain]]
