"""The peak of a process that takes a gradient step, beside what the plan says: run as a program, it prints both."""

import gc
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rankfold.data.batch import Batch
from rankfold.data.clusters import uniform_clusters
from rankfold.models import GrammarConfig, ModelConfig, build_model

CLEAR = Path("/proc/self/clear_refs")
NUM_WORDS = 1000
needs_linux = pytest.mark.skipif(not CLEAR.exists(), reason="peak memory is read from Linux")


def measured_and_planned(config: dict[str, Any], batch: int, length: int) -> tuple[int, int]:
    """Bytes above what a fresh process held before it had a model, every table in pages of its own; and the plan's."""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    command = [sys.executable, __file__, json.dumps(config), str(batch), str(length)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found, planned = json.loads(done.stdout)
    return found, planned


def _held(key: str) -> int:
    found = re.search(rf"{key}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def _step(config: Any, batch: int, length: int) -> tuple[int, int]:
    gc.collect()
    before = _held("VmRSS")
    clusters = uniform_clusters(NUM_WORDS, config.num_clusters, seed=0) if config.family == "block" else None
    model: Any = build_model(config, NUM_WORDS, clusters=clusters)
    words = torch.zeros(batch, length, dtype=torch.int64)
    for _ in range(2):
        gc.collect()
        CLEAR.write_text("5")
        model.log_likelihood(Batch(words, torch.full((batch,), length))).sum().neg().backward()
    return _held("VmHWM") - before, model.plan(batch, length).in_order(config.plan).peak_bytes


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    kind: Any = GrammarConfig if settings["family"].endswith("pcfg") else ModelConfig
    small: dict[str, Any] = {"num_nonterminals": 4} if kind is GrammarConfig else {"num_states": 64, "rank": 8}
    first = "npcfg" if kind is GrammarConfig else "lhmm"
    _step(kind(family=first, dim=8, **small), 2, 3)  # what a process takes once
    print(json.dumps(_step(kind(**settings), int(sys.argv[2]), int(sys.argv[3]))))
