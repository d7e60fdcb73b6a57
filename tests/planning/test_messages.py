"""The plan of one of several devices that share a model's states: its share of work and memory, and what it sends."""

import pytest

from rankfold.cli.explain import explain
from rankfold.data.clusters import uniform_clusters
from rankfold.errors import DomainError, UnsupportedError
from rankfold.models import ModelConfig
from rankfold.models.catalog import sized_model
from rankfold.models.sharded import messages, num_parameters_of
from rankfold.planning.messages import Message

NUM_WORDS = 500
SIZES = {"num_states": 4096, "rank": 64, "dim": 32, "num_clusters": 16}


def _model(family: str, **settings: object) -> object:
    config = ModelConfig(**{"family": family, **SIZES, **settings})  # type: ignore[arg-type]
    clusters = uniform_clusters(NUM_WORDS, config.num_clusters, seed=0) if config.has_clusters else None
    return sized_model(config, NUM_WORDS, clusters=clusters)


def _sent(found: tuple[Message, ...], what: str) -> tuple[str, int, int]:
    (one,) = (x for x in found if x.what.startswith(what))
    return one.collective, one.numbers, one.times


def test_low_rank_sends_ranks_alone() -> None:
    found = messages(_model("lhmm"), 8, 20, 4)
    assert _sent(found, "messages") == ("all_reduce", 8 * 64, 2 * 19)
    table = 4096 // 4 * 64
    assert all(x.numbers < table for x in found if x.what != "gradients that all share")


def test_dense_sends_states_and_blocks_those_of_a_block() -> None:
    dense = messages(_model("hmm"), 8, 20, 4)
    assert _sent(dense, "messages, forward") == ("reduce_scatter", 8 * (4096 + 4), 19)
    assert _sent(dense, "messages, backward") == ("all_gather", 8 * 1024, 2 * 19)
    assert _sent(dense, "embeddings") == ("all_gather", 1024 * 32, 1)
    blocks = messages(_model("block"), 8, 20, 4)
    assert _sent(blocks, "messages") == ("all_reduce", 8 * 256, 2 * 19)


def test_shared_gradients_are_of_what_no_state_owns() -> None:
    model = _model("lhmm")
    shared = _sent(messages(model, 8, 20, 4), "gradients")[1]
    assert 4 * num_parameters_of(model, 4) - 3 * shared == model.num_parameters  # type: ignore[attr-defined]


@pytest.mark.parametrize("family", ["hmm", "lhmm", "block"])
def test_a_device_has_its_share_of_work_and_memory(family: str) -> None:
    model = _model(family)
    one, four = (model.plan(64, 32, devices=num).best for num in (1, 4))  # type: ignore[attr-defined]
    # A smaller table of normalisers may be kept for the backward pass instead of being made again.
    assert four.multiply_adds * 4 == pytest.approx(one.multiply_adds, rel=0.05)
    assert one.peak_bytes / 4 < four.peak_bytes < 0.36 * one.peak_bytes  # what all share, and what came from all
    assert _model(family, shards=4).plan(64, 32).best == four  # type: ignore[attr-defined]


def test_explain_says_what_fits_and_what_travels() -> None:
    found = explain(_model("lhmm"), batch=8, length=20, devices=4)  # type: ignore[arg-type]
    assert found["devices"] == 4
    assert found["messages"][0] == {
        "what": "messages, forward and backward",
        "collective": "all_reduce",
        "numbers": 8 * 64,
        "times": 38,
        "bytes": 4 * 8 * 64 * 38,
    }
    assert explain(_model("lhmm"), devices=1)["messages"] == []  # type: ignore[arg-type]


def test_devices_that_cannot_share_the_states_are_refused() -> None:
    with pytest.raises(UnsupportedError, match='states of "banded" cannot be shared'):
        explain(_model("banded"), devices=2)  # type: ignore[arg-type]
    with pytest.raises(DomainError, match="16 clusters cannot be shared by 17 processes"):
        explain(_model("block"), devices=17)  # type: ignore[arg-type]
    with pytest.raises(DomainError, match="--devices is 0"):
        explain(_model("lhmm"), devices=0)  # type: ignore[arg-type]
