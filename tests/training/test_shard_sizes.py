"""Shards too small for a model's checkpoints are refused before the first update, and the folder stays free."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rankfold.errors import DomainError
from rankfold.training.loop import train
from tests.training.runs import DROPOUT, FAMILIES, tiny, write_corpus

CASES: list[dict[str, Any]] = [{"family": family} for family in FAMILIES]
CASES += [{"family": family, "batching": "streams"} for family in ("hmm", "block", "rank")]
CASES += [{"family": "lhmm", "average": 0.5, **DROPOUT}]


@pytest.mark.parametrize("settings", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_the_size_it_asks_for_is_enough(settings: dict[str, Any], tmp_path: Path) -> None:
    data, out = write_corpus(tmp_path / "data"), tmp_path / "run"
    with pytest.raises(DomainError, match=r"train.checkpoint_shard_mb is 1e-06, but files of 1 bytes") as refused:
        train(tiny(**settings, checkpoint_shard_mb=1e-6), data, out)
    assert not (out / "metrics.jsonl").exists()
    found = re.search(r"at least ([\d,]+) bytes", str(refused.value))
    assert found is not None
    enough = int(found[1].replace(",", ""))
    assert train(tiny(**settings, checkpoint_shard_mb=enough / 1e6), data, out).finished
    assert max(file.stat().st_size for file in out.glob("checkpoint-*.safetensors")) <= enough
