"""Training in shards of states, case by case."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import rankfold
from rankfold.models.pretrained import load_any
from rankfold.training.distributed import joined
from rankfold.training.loop import train
from tests.training.processes import UPDATES, Group, expect_done, in_float64
from tests.training.runs import DROPOUT, tiny

CASES: dict[str, dict[str, Any]] = {
    "lhmm": {"family": "lhmm", **DROPOUT},
    "hmm": {"family": "hmm", **DROPOUT},
    "block": {"family": "block", **DROPOUT},
    "lhmm streams": {"family": "lhmm", "batching": "streams", "feature_dropout": 0.3},
    "hmm streams": {"family": "hmm", "batching": "streams"},
    "block streams": {"family": "block", "batching": "streams", "state_dropout": 0.5, "reset_eos": True},
    "free lhmm": {"family": "lhmm", "neural": False, "state_dropout": 0.3},
    "free hmm": {"family": "hmm", "neural": False, "state_dropout": 0.3},
    "free block": {"family": "block", "neural": False, "state_dropout": 0.5},
    "tied block": {"family": "block", "tied": True, "clip": 0.1},
    "printed lhmm": {"family": "lhmm", "printed": True, "feature_map": "positive", "average": 0.9},
    "uneven lhmm": {"family": "lhmm", "num_states": 11},
    "uneven hmm": {"family": "hmm", "num_states": 11},
    "bernoulli lhmm": {"family": "lhmm", "state_dropout": 0.6, "state_dropout_kind": "bernoulli", "accumulate": 2},
}


def run(folder: Path, out: Path, names: list[str], *, resume: bool = False, **settings: Any) -> None:
    """Train some cases in float64; with `shards`, together with other processes."""
    with joined(), in_float64():
        for name in names:
            config = tiny(**{**CASES[name], **UPDATES, **settings})
            train(config, folder, out / name, resume=resume, quiet=True)
        shards = settings.get("shards", 1)
        for name in names if shards > 1 else ():
            _load_again(out / name, shards)


def _load_again(run: Path, shards: int) -> None:
    """Raise unless the saved model gives the same numbers in one process and in all, and is saved again by all."""
    whole, share = load_any(run / "best"), rankfold.load(run, shards=shards)
    batch = whole.batch(torch.tensor([[3, 5, 2, 7], [4, 1, 9, 9]]))
    with torch.no_grad():
        expected = whole.log_likelihood(batch)
        torch.testing.assert_close(share.log_likelihood(batch), expected, rtol=1e-10, atol=1e-10)
    share.save_pretrained(run / "again")
    again = load_any(run / "again")
    assert again.config == whole.config
    assert all(torch.equal(x, again.state_dict()[name]) for name, x in whole.state_dict().items())
    held, table = share.num_parameters, sum(x.numel() for x in whole.parameters())
    assert held < table


def trained(num: int, folder: Path, out: Path, names: list[str], *, resume: bool = False, **settings: Any) -> None:
    """Train cases in so many processes; raises with what they said if one fails."""
    expect_done(Group(num, run_some, folder, out, tuple(names), resume, {"shards": num, **settings}))


def run_some(folder: Path, out: Path, names: tuple[str, ...], resume: bool, settings: dict[str, Any]) -> None:
    """`run` in one of the processes."""
    run(folder, out, [*names], resume=resume, **settings)
