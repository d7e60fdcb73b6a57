"""HMMs side by side: the same numbers as one HMM of all their states, the best weights, and what does not fit."""

import json
import math
from pathlib import Path

import pytest
import torch

import rankfold
from benchmarks import mixture
from benchmarks.__main__ import main
from rankfold.errors import DataError
from rankfold.training.run_dir import METRICS, read_metrics

SETTINGS = ["train.updates=6", "train.evaluate_every=3", "model.num_states=8", "model.rank=4", "model.dim=8"]


def run(folder: Path, data: Path, *settings: str) -> Path:
    rankfold.train("small-hmm", data, folder, settings=[*SETTINGS, *settings], device="cpu", quiet=True)
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    for split, num in (("train", 20), ("valid", 3), ("test", 2)):
        (folder / f"{split}.txt").write_text("a b c\nb a\nc c a b\n" * num)
    return folder


def test_side_by_side_is_one_hmm_of_all_states(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [run(tmp_path / "one", data), run(tmp_path / "two", data, "train.seed=2", "model.num_states=6")]
    assert main(["mixture", *map(str, runs), "--data", str(data), "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    weights = torch.tensor([part["weight"] for part in found["parts"]], dtype=torch.float64)
    models = [rankfold.load(folder).double() for folder in runs]
    for part, folder in zip(found["parts"], runs, strict=True):
        end = read_metrics(folder / METRICS)[-1]
        assert part["test"] == pytest.approx(end["test_perplexity"], rel=1e-6)
        assert part["minutes"] == end["seconds"] / 60
    with torch.no_grad():
        parts = [model.potentials(model.batch(torch.tensor([[2, 3, 1]]))) for model in models]
    joined = rankfold.ChainPotentials(
        torch.cat([w.log() + p.log_initial for w, p in zip(weights, parts, strict=True)]),
        rankfold.Dense(torch.block_diag(*(p.transition.to_dense() for p in parts))),
        torch.cat([p.log_obs for p in parts], -1),
    )
    each = torch.stack([rankfold.log_z(p) for p in parts])
    together = (weights.log()[:, None] + each).logsumexp(0)
    assert float(rankfold.log_z(joined)) == pytest.approx(float(together), abs=1e-10)
    assert main(["mixture", *map(str, runs), "--data", str(data), "--device", "cpu"]) == 0
    assert "one HMM of them all" in capsys.readouterr().out.splitlines()[-1]


def test_weights_are_the_most_probable() -> None:
    found = torch.randn(2, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 5
    weight = float(mixture.mixture_weights(found)[0])
    grid = torch.linspace(1e-3, 1 - 1e-3, 999, dtype=torch.float64)
    values = torch.stack([grid.log(), (1 - grid).log()])[:, :, None] + found[:, None]
    assert weight == pytest.approx(float(grid[values.logsumexp(0).sum(-1).argmax()]), abs=1e-3)
    better = found + torch.tensor([[0.0], [9.0]])
    assert float(mixture.mixture_weights(better)[1]) == pytest.approx(1, abs=1e-3)
    with pytest.raises(DataError, match="impossible for every model"):
        mixture.mixture_weights(torch.full((2, 3), -math.inf))


def test_what_does_not_fit_is_refused(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = run(tmp_path / "one", data)
    (data / "train.txt").write_text("a b c d\n" * 5)
    other = run(tmp_path / "two", data)
    assert main(["mixture", str(first), str(other), "--data", str(data)]) == 2
    assert "has other words" in capsys.readouterr().err
