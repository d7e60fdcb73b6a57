"""What `import rankfold` offers, and what it loads."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rankfold

ROOMS = ("callbacks", "estimators", "fgg", "models", "online", "recursions")


def test_every_name_is_there_and_named_once() -> None:
    assert len(rankfold.__all__) == len(set(rankfold.__all__)) <= 45
    for name in rankfold.__all__:
        found = getattr(rankfold, name)
        assert name in ROOMS or name == "__version__" or found.__doc__
    assert dir(rankfold) == sorted(rankfold.__all__)
    with pytest.raises(AttributeError, match="no attribute 'state_posterior'"):
        rankfold.state_posterior  # type: ignore[attr-defined]  # noqa: B018


def test_type_checkers_see_the_same_names() -> None:
    stub = Path(rankfold.__file__).with_suffix(".pyi").read_text()
    assert sorted(re.findall(r" as (\w+)$", stub, re.MULTILINE)) == sorted(rankfold.__all__)


def test_a_name_loads_its_own_room_and_what_lies_below() -> None:
    code = """
import os, sys, rankfold
assert "torch" not in sys.modules
import torch
for name, absent in (("Dense", "recursions"), ("log_z", "decoding"), ("viterbi", "models")):
    if os.fork() == 0:
        getattr(rankfold, name)
        sys.exit(any(other.startswith(f"rankfold.{absent}") for other in sys.modules))
    if os.wait()[1]:
        sys.exit(f"{name} loads {absent}, or does not load")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_load_opens_models_and_runs(tmp_path: Path) -> None:
    tables = torch.tensor([0.5, 0.5]), torch.full((2, 2), 0.5), torch.full((2, 3), 1 / 3)
    model = rankfold.models.HMM.from_tables(*tables)
    words = torch.tensor([[0, 2, 1]])
    for folder in (tmp_path / "model", tmp_path / "run" / "best"):
        model.save_pretrained(folder)
    for folder in (tmp_path / "model", tmp_path / "run", str(tmp_path / "run" / "best")):
        assert torch.equal(rankfold.load(folder, device="cpu")(words).log_prob(), model(words).log_prob())


def test_train_takes_the_name_of_a_recipe(tmp_path: Path) -> None:
    with pytest.raises(rankfold.DataError, match="no recipe"):
        rankfold.train("hmm-smal", tmp_path, tmp_path / "out")
