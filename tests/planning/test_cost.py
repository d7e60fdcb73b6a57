"""Plans of a gradient step: what they say of one another, not what a machine does."""

from typing import Any

import pytest

from rankfold import UnsupportedError
from rankfold.models import ModelConfig, build_model
from rankfold.numerics.precision import Precision
from rankfold.planning.chains import ChainSizes, block_plan, chain_plan, rank_plans
from rankfold.planning.cost import Plan, Plans, Rates, Work

devices = pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1"])
precisions = pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])


def words(z: int, rank: int | None, band: int, num_words: int, dim: int, *where: Any, params: int = 1000) -> Plans:
    """The plan of an HMM of words; `where` are batch, length, device and precision."""
    return chain_plan(ChainSizes(z, rank, params, dim, num_words, band), *where)


def every_plan(batch: int = 8, length: int = 32, device: str = "cpu", precision: str = "float32") -> list[Plans]:
    where: tuple[Any, ...] = (batch, length, device, precision)
    end = (*where, 1000)
    return [
        words(1024, None, 0, 5000, 64, *where),
        words(1024, 128, 0, 5000, 64, *where),
        words(1024, 128, 17, 5000, 0, *where),
        rank_plans(2048, 512, 5000, 64, *end),
        rank_plans(3, 5, 7, 0, *end),
        block_plan(32, 64, 300, 64, *end),
        block_plan(1, 1, 1, 0, *end),
    ]


@devices
@precisions
def test_the_cheapest_comes_first(device: str, precision: str) -> None:
    for batch in (1, 3, 17, 129):
        for plans in every_plan(batch, 32, device, precision):
            seconds = [way.seconds for way in plans.ways]
            assert seconds == sorted(seconds)
            assert plans.best is plans.ways[0]
            assert len({way.order for way in plans.ways}) == len(plans.ways)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(("num_states", "rank"), [(1024, 512), (16384, 512), (4096, 2048)])
def test_the_better_order_changes_once_with_the_batch(num_states: int, rank: int, device: str) -> None:
    """Multiplying V^T U out pays once there are tokens enough to share it."""
    orders = [rank_plans(num_states, rank, 10_000, 128, 2**k, 1, device, "float32", 1000).best.order for k in range(16)]
    assert orders[0] == "state"
    assert orders[-1] == "rank"
    assert orders == sorted(orders, reverse=True)


def test_multiply_adds_of_both_orders() -> None:
    z, r, tokens = 100, 7, 6
    ways = {way.order: way for way in rank_plans(z, r, 11, 0, 2, 3, "cpu", "float32", 1000).ways}
    # Forward, backward and the gradient of every cell of the scan, of two factors also what lies between them; V^T U
    # and its two gradients.
    difference = tokens * (4 * 2 * z * r - 3 * r * r) - 3 * z * r * r
    assert ways["state"].multiply_adds - ways["rank"].multiply_adds == difference


@devices
def test_memory_grows_with_the_tokens(device: str) -> None:
    for small, more, longer in zip(
        every_plan(4, 8, device), every_plan(5, 8, device), every_plan(4, 9, device), strict=True
    ):
        by_order = [{way.order: way for way in plans.ways} for plans in (small, more, longer)]
        for order, way in by_order[0].items():
            batch, length = by_order[1][order], by_order[2][order]
            assert way.tokens == 32
            assert batch.peak_bytes - way.peak_bytes == 8 * way.token_bytes > 0
            assert length.peak_bytes - way.peak_bytes == 4 * way.token_bytes
            assert batch.multiply_adds > way.multiply_adds
            assert batch.seconds >= way.seconds
            assert length.seconds >= way.seconds


def test_the_largest_batch_fits_and_one_token_more_does_not() -> None:
    for plans in every_plan():
        for way in plans.ways:
            for memory in (way.fixed_bytes + way.token_bytes, way.peak_bytes, 10 * way.peak_bytes + 1, 2**40 + 3):
                tokens = way.largest_batch(memory)
                assert tokens >= 1
                assert way._replace(tokens=tokens).peak_bytes <= memory
                assert way._replace(tokens=tokens + 1).peak_bytes > memory
            assert way.largest_batch(way.peak_bytes) == way.tokens
            assert way.largest_batch(way.fixed_bytes + way.token_bytes - 1) == 0
            assert way.largest_batch(0) == 0


def test_low_rank_is_cheaper_than_dense_and_a_band_costs() -> None:
    dense, low_rank, banded = (
        words(1024, rank, band, 5000, 64, 8, 32, "cpu", "float32").best for rank, band in ((None, 0), (64, 0), (64, 17))
    )
    assert low_rank.seconds < banded.seconds < dense.seconds
    assert low_rank.peak_bytes < banded.peak_bytes < dense.peak_bytes


def test_lower_precision_is_never_slower() -> None:
    for plans in zip(*(every_plan(64, 32, "cuda", p) for p in ("float32", "tf32", "bf16")), strict=True):
        seconds = [min(way.seconds for way in plan.ways) for plan in plans]
        assert seconds == sorted(seconds, reverse=True)


def test_seconds_are_the_larger_of_work_and_traffic() -> None:
    rates = Rates(100.0, 10.0, 20.0)
    assert Work("products", 1000, 20).seconds(rates) == 10
    assert Work("traffic", 100, 200).seconds(rates) == 20
    assert Work("exact", 1000, 20, exact=True).seconds(rates) == 50
    assert Work("thin products", 1000, 20, least=30.0).seconds(rates) == 30
    assert Work("more calls", 1000, 20, calls=1.5).seconds(rates) == 11.5
    plan = Plan("state", (Work("a", 1000, 0), Work("b", 0, 50)), 7, 3, 5, rates)
    assert plan.seconds == 10 + 5
    assert plan.multiply_adds == 1000
    assert plan.peak_bytes == 22


@pytest.mark.parametrize("family", ["hmm", "lhmm", "banded", "rank"])
def test_an_unknown_device(family: str) -> None:
    model = build_model(ModelConfig(family=family, num_states=3, rank=2, dim=2), 3)
    with pytest.raises(UnsupportedError, match=r"device is 'tpu:0'.*cpu.*cuda"):
        model.plan(device="tpu:0")
    with pytest.raises(UnsupportedError, match="device is ''"):
        block_plan(2, 2, 2, 2, 1, 1, "", "float32", 1000)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_an_unknown_precision(device: str) -> None:
    with pytest.raises(UnsupportedError, match="float16"):
        rank_plans(8, 2, 3, 2, 1, 1, device, "float16", 1000)


def test_dropout_makes_a_step_cheaper() -> None:
    whole, half = (
        build_model(ModelConfig(family="lhmm", num_states=64, rank=16, dim=4, state_dropout=p, feature_dropout=p), 3)
        for p in (0.0, 0.5)
    )
    assert half.plan().best.multiply_adds < whole.plan().best.multiply_adds / 2


def test_free_tables_and_kept_ones_are_counted() -> None:
    """A free table of emissions is written with its gradient; that of a network is kept while it is small."""
    free, neural = (words(512, 16, 0, 4000, dim, 1, 1, "cpu", "float32").best for dim in (0, 8))
    assert free.peak_bytes - neural.peak_bytes > 2 * 4 * 512 * 4000
    small, large = (words(z, 16, 0, 10_000, 8, 1, 1, "cpu", "float32").best.fixed_bytes for z in (800, 840))
    assert small > large  # 2**23 entries lie between the two


def test_parameters_are_held_with_their_gradients() -> None:
    model = build_model(ModelConfig(family="hmm", num_states=64, neural=False), 1000)
    assert model.num_parameters == 64 + 64 * 64 + 64 * 1000
    assert model.plan().best.fixed_bytes > 2 * 4 * model.num_parameters


def test_an_optimiser_doubles_what_stays() -> None:
    for plans in every_plan():
        for way in plans.ways:
            assert way.parameters == 1000
            assert way.with_optimiser().peak_bytes - way.peak_bytes == 2 * 4 * 1000
            assert way.with_optimiser().fixed_bytes == way.state_bytes + way.work_bytes
            assert way.with_optimiser().largest_batch(10**9) <= way.largest_batch(10**9)


def test_an_evaluation_holds_less_than_a_step() -> None:
    for device in ("cpu", "cuda"):
        for plans in every_plan(device=device):
            for way in plans.ways:
                assert 0 < way.eval_token_bytes < way.token_bytes
                assert way.eval_fixed_bytes <= way.work_bytes
                tokens = way.largest_evaluation(2**34)
                assert way.eval_fixed_bytes + tokens * way.eval_token_bytes <= 2**34
                assert way.eval_fixed_bytes + (tokens + 1) * way.eval_token_bytes > 2**34
                assert way.largest_evaluation(0) == 0


def test_the_normaliser_of_a_gpu_writes_no_table() -> None:
    """float32 is torch's, whose products are exact: there the table is held."""
    exact, fused = (words(16384, 1024, 0, 10_000, 64, 1, 1, "cuda", p).best for p in ("float32", "tf32"))
    assert exact.fixed_bytes - fused.fixed_bytes == 4 * 16384 * 10_000 - 2 * (16384 + 10_000) * 64
    assert [{part.name: part.kernel for part in way.parts}["emission normaliser"] for way in (exact, fused)] == [
        "torch",
        "triton",
    ]
    assert all(part.kernel == "torch" for plans in every_plan() for way in plans.ways for part in way.parts)


def test_half_precision_halves_what_the_scan_reads() -> None:
    scans = [
        {part.name: part.bytes for part in words(4096, 512, 0, 10, 8, 1, 100, "cuda", p).best.parts}["scan"]
        for p in ("tf32", "bf16")
    ]
    messages = 8 * 4 * 100 * 4096
    assert scans[0] - messages == 2 * (scans[1] - messages) == 100 * 4 * 2 * 4096 * 512


def test_both_passes_share_their_readings_where_few_sequences_meet_on_a_gpu() -> None:
    def read(batch: int, device: str, precision: Precision) -> float:
        plan = words(4096, 512, 0, 10, 8, batch, 100, device, precision).best
        scan = next(part for part in plan.parts if part.name == "scan")
        messages = 8 * 4 * 100 * batch * 4096 if scan.kernel == "triton" else 0  # else a part by themselves
        return (scan.bytes - messages) / (100 * 4 * 2 * 4096 * 512)

    assert read(64, "cuda", "tf32") == 1
    assert read(65, "cuda", "tf32") == read(8, "cuda", "float32") == read(8, "cpu", "float32") == 2


def test_a_band_too_large_to_write_out_is_read_twice() -> None:
    """A matrix of 2**26 entries is written for the scan of both passes; beyond that two loops apply its terms."""
    small, large = (
        next(part for part in words(z, 512, 17, 10, 8, 8, 100, "cuda", "tf32").best.parts if part.name == "scan")
        for z in (8192, 8193)
    )
    assert small.kernel == "triton"
    assert small.bytes == 100 * 4 * 8192**2 + 8 * 4 * 800 * 8192
    assert large.kernel == "torch"
    assert large.bytes == 2 * 100 * 4 * (2 * 8193 * 512 + 8193 * 17)
