"""Plans of grammars: what they say of one another, and the bytes of this machine."""

from typing import Any

import pytest

from rankfold.models import GrammarConfig
from rankfold.models.catalog import sized_model
from rankfold.models.config import KINDS
from rankfold.planning.cost import Plan, Plans
from tests.peaks import measured_and_planned, needs_linux

FAMILIES: list[dict[str, Any]] = [
    {"family": "npcfg"},
    {"family": "cpcfg"},
    {"family": "tnpcfg", "rank": 100},
    {"family": "rankpcfg", "rank": 100},
    {"family": "lpcfg", "rank": 16},
    {"family": "lpcfg", "rank": 16, "low_rank": KINDS},
    {"family": "spcfg"},
    {"family": "npcfg", "neural": False},
    {"family": "spcfg", "neural": False},
]
every_family = pytest.mark.parametrize("fields", FAMILIES, ids=str)


def plans(batch: int = 4, length: int = 20, device: str = "cpu", **fields: Any) -> Plans:
    sizes = {"num_nonterminals": 60, "num_preterminals": 120, **fields}
    return sized_model(GrammarConfig(**sizes), 5000).plan(batch, length, device)


@every_family
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_token_of_a_longer_sentence_holds_more(fields: dict[str, Any], device: str) -> None:
    """A chart has a row for every word and a place in it for every other: t^2 in all."""
    for ways in zip(*(plans(1, length, device, **fields).ways for length in (20, 40, 80)), strict=True):
        short, longer, longest = sorted(ways, key=lambda way: way.tokens)
        assert 20 * short.token_bytes < 40 * longer.token_bytes < 80 * longest.token_bytes
        if fields["family"] != "cpcfg":  # whose own rules weigh less a token where there are more
            assert short.token_bytes < longer.token_bytes
            grown = longer.token_bytes - short.token_bytes
            assert longest.token_bytes - longer.token_bytes == pytest.approx(2 * grown, rel=1e-3)
            assert short.fixed_bytes == longest.fixed_bytes
        for way in ways:
            assert 0 < way.eval_token_bytes < way.token_bytes
            assert way.eval_fixed_bytes <= way.work_bytes


@every_family
def test_more_sentences_cost_more(fields: dict[str, Any]) -> None:
    one, more = plans(1, **fields), plans(8, **fields)
    for order in {way.order for way in one.ways}:
        assert more.in_order(order).seconds > one.in_order(order).seconds
        assert more.in_order(order).peak_bytes > one.in_order(order).peak_bytes
        assert more.in_order(order).token_bytes == one.in_order(order).token_bytes
    assert [way.seconds for way in more.ways] == sorted(way.seconds for way in more.ways)


def test_only_factored_rules_have_two_orders() -> None:
    orders = {fields["family"]: {way.order for way in plans(**fields).ways} for fields in FAMILIES}
    both = {"state", "rank"}
    assert orders.pop("tnpcfg") == orders.pop("rankpcfg") == both
    assert all(found == {"state"} for found in orders.values())


def test_multiply_adds_of_both_orders() -> None:
    n, r, batch, length = 50, 7, 3, 12
    found = plans(batch, length, family="rankpcfg", num_nonterminals=n, rank=r)
    spans = batch * length * length // 2
    difference = 3 * (spans * (3 * n * r - 2 * r * r) - 2 * n * r * r)
    assert found.in_order("state").multiply_adds - found.in_order("rank").multiply_adds == difference


def test_rank_space_pays_for_many_symbols_and_enough_spans() -> None:
    def best(num_nonterminals: int, rank: int, batch: int) -> str:
        return plans(batch, 30, family="rankpcfg", num_nonterminals=num_nonterminals, rank=rank).best.order

    assert best(4500, 128, 4) == "rank"
    assert best(250, 500, 4) == "state"
    assert best(4500, 2000, 1) == "state"
    assert best(4500, 2000, 64) == "rank"


def test_low_rank_is_cheaper_where_it_is_lower() -> None:
    def spans(**fields: Any) -> int:
        parts = {part.name: part.multiply_adds for part in plans(**fields).best.parts}
        return parts["spans"]

    dense = spans(family="npcfg")
    assert spans(family="lpcfg", low_rank=()) == dense
    assert spans(family="lpcfg", rank=8) < dense
    assert spans(family="lpcfg", rank=8, low_rank=("span_span", "span_leaf", "leaf_span")) < spans(
        family="lpcfg", rank=8
    )


def test_rules_of_each_sentence_are_held_for_each_sentence() -> None:
    def rules(way: Plan) -> int:
        return way.peak_bytes - plans(way.tokens // 20, family="npcfg").best.peak_bytes

    one, more = (plans(batch, family="cpcfg").best for batch in (1, 5))
    table = 4 * 60 * 180**2
    assert rules(more) - rules(one) > 4 * 5 * table


@pytest.mark.slow
@needs_linux
@pytest.mark.parametrize(
    ("config", "batch", "length"),
    [
        ({"family": "npcfg", "num_nonterminals": 100, "num_preterminals": 200}, 4, 20),
        ({"family": "cpcfg", "num_nonterminals": 30, "num_preterminals": 60}, 8, 30),
        ({"family": "tnpcfg", "num_nonterminals": 250, "num_preterminals": 500, "rank": 250, "plan": "state"}, 8, 30),
        (
            {"family": "rankpcfg", "num_nonterminals": 4500, "num_preterminals": 9000, "rank": 128, "plan": "rank"},
            4,
            30,
        ),
        ({"family": "lpcfg", "num_nonterminals": 60, "num_preterminals": 120, "rank": 32}, 4, 30),
        ({"family": "spcfg", "num_nonterminals": 512, "num_preterminals": 1024}, 4, 30),
    ],
    ids=lambda x: x["family"] if isinstance(x, dict) else str(x),
)
def test_bytes_of_this_machine(config: dict[str, Any], batch: int, length: int) -> None:
    """A bound: never far below, and within 1.5 times."""
    found, planned = measured_and_planned(config, batch, length)
    assert 0.93 * found < planned < 1.5 * found


def test_the_plan_of_any_length_takes_no_time() -> None:
    """Bytes of a token grow by the same for every place of its chart."""
    one, two, far = (plans(length=t).best.token_bytes for t in (10_000, 20_000, 10**12))
    assert far == pytest.approx(one + (two - one) * (10**12 - 10_000) / 10_000, rel=1e-6)
