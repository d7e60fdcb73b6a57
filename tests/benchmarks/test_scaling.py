"""The prediction on docs/scaling.md is that of its records; the benchmark of processes runs."""

import json
import shutil
from pathlib import Path

import pytest

from benchmarks import processes, several_devices
from benchmarks.several_devices import ring_bytes
from rankfold.planning.messages import Message

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_has_the_figures_of_its_records(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "images").mkdir()
    for name in ("scaling.md", "results/steps-million.json", "results/processes.json", "results/processes-gpu.json"):
        shutil.copy(DOCS / name, tmp_path / name)
    assert several_devices.main(["--docs", str(tmp_path)]) == 0
    assert (tmp_path / "scaling.md").read_text() == (DOCS / "scaling.md").read_text()
    assert (tmp_path / "images" / "scaling.png").stat().st_size > 10_000


def test_bytes_around_a_ring_of_four() -> None:
    """A sum of 100 numbers: each GPU passes on three quarters of them twice, of 400 bytes."""
    assert ring_bytes(Message("", "all_reduce", 100, 1), 4) == 600
    assert ring_bytes(Message("", "reduce_scatter", 100, 2), 4) == 600
    assert ring_bytes(Message("", "all_gather", 25, 1), 4) == 300  # its own quarter to three others


@pytest.mark.slow
def test_one_and_two_processes_are_timed(tmp_path: Path) -> None:
    sizes = ["--states=16", "--rank=4", "--words=50", "--sequences=4", "--length=4", "--repeats=3", "--num", "1", "2"]
    assert processes.main([*sizes, "--out", str(tmp_path / "record.json")]) in (0, 1)  # 1: too slow, of a busy machine
    record = json.loads((tmp_path / "record.json").read_text())
    assert [row["processes"] for row in record["several"]] == [1, 2]
    assert [row["numbers"] > 0 for row in record["several"]] == [False, True]
