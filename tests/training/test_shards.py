"""States shared by several processes train to one process's numbers; saved, loaded and resumed by any number."""

from pathlib import Path

import pytest
import torch

import rankfold
from rankfold.errors import DataError, DomainError, UnsupportedError
from rankfold.models import ModelConfig
from rankfold.models.pretrained import load_any
from rankfold.training import sharding
from rankfold.training.loop import train
from tests.training.processes import Group, command
from tests.training.runs import metrics, state, tiny, write_corpus
from tests.training.shards import CASES, run, trained

FAST = ["lhmm", "block"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The text of all cases."""
    return write_corpus(tmp_path_factory.mktemp("data") / "words")


def expect_same(a: Path, b: Path, *, rtol: float = 1e-7) -> None:
    """Raise unless two runs have the same metrics and the same best model, to the rounding of float64."""
    for x, y in zip(metrics(a), metrics(b), strict=True):
        assert x == pytest.approx(y, rel=rtol / 10, abs=1e-12)
    one, other = (load_any(x / "best").state_dict() for x in (a, b))
    assert one.keys() == other.keys()
    for name, x in one.items():
        assert x.double().numpy() == pytest.approx(other[name].double().numpy(), rel=rtol, abs=rtol / 100), name


def test_two_processes_train_the_model_of_one_and_one_goes_on(folder: Path, tmp_path: Path) -> None:
    run(folder, tmp_path / "one", FAST, updates=5)
    trained(2, folder, tmp_path / "two", FAST, updates=5)
    for name in FAST:
        expect_same(tmp_path / "one" / name, tmp_path / "two" / name)
    run(folder, tmp_path / "one", ["lhmm"], resume=True, updates=7)
    run(folder, tmp_path / "two", ["lhmm"], resume=True, updates=7, shards=1)
    expect_same(tmp_path / "one" / "lhmm", tmp_path / "two" / "lhmm")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("num", [2, 4])
def test_every_case_in_two_and_four_processes(folder: Path, tmp_path: Path, name: str, num: int) -> None:
    run(folder, tmp_path / "one", [name])
    trained(num, folder, tmp_path / "many", [name])
    expect_same(tmp_path / "one" / name, tmp_path / "many" / name)


@pytest.mark.slow
def test_a_run_goes_on_with_other_numbers_of_processes(folder: Path, tmp_path: Path) -> None:
    names = ["lhmm streams", "hmm", "tied block", "printed lhmm"]
    run(folder, tmp_path / "one", names)
    run(folder, tmp_path / "many", names, updates=5)
    trained(2, folder, tmp_path / "many", names, resume=True, updates=9)
    trained(4, folder, tmp_path / "many", names, resume=True, updates=14)
    run(folder, tmp_path / "many", names, resume=True, updates=20)
    for name in names:
        one, other = (state(tmp_path / x / name)[0] for x in ("one", "many"))
        assert one.keys() == other.keys()
        for key, x in one.items():
            assert x.double().numpy() == pytest.approx(other[key].double().numpy(), rel=1e-7, abs=1e-9), key


def _loads(run: Path) -> None:
    """A script of one's own."""
    whole, share = rankfold.load(run), rankfold.load(run, shards=2)
    words = whole.batch(torch.tensor([[3, 5, 2]]))
    with torch.no_grad():
        torch.testing.assert_close(share.log_likelihood(words), whole.log_likelihood(words), rtol=1e-5, atol=1e-5)


def test_a_script_loads_a_model_in_two_processes(folder: Path, tmp_path: Path) -> None:
    """One that a single process saved; nothing but torchrun's variables says that there are two."""
    train(tiny(updates=2), folder, tmp_path / "run", quiet=True)
    done = Group(2, _loads, tmp_path / "run").finish()
    assert [status for status, _ in done] == [0, 0], done


def test_families_that_cannot_be_shared_are_refused_by_name() -> None:
    for family in ("banded", "rank"):
        with pytest.raises(DomainError, match=f'shards is 2, but the states of "{family}"(.|\n)*hmm, lhmm, block'):
            ModelConfig(family=family, shards=2)


def test_too_few_processes_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DomainError, match=r"model.shards is 4, but 1 process was started(.|\n)*--nproc-per-node 4"):
        train(tiny(shards=4), folder, tmp_path / "run", quiet=True)


def test_em_in_shards_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "num_processes", lambda: 2)
    with pytest.raises(UnsupportedError, match=r"expected counts of EM are not shared(.|\n)*adamw"):
        sharding.expect_processes(tiny(family="hmm", neural=False, optimizer="em", shards=2))


@pytest.mark.slow
def test_every_process_says_what_is_wrong(folder: Path, tmp_path: Path) -> None:
    arguments = ["train", "--data", str(folder), "--out", str(tmp_path / "run")]
    arguments += ["--recipe", "small-lhmm", "--set", "model.num_states=3", "--set", "model.shards=2"]
    for more, told in (
        (["--set", "model.shards=3"], "2 processes were started"),
        (["--set", "model.num_states=1"], "1 states cannot be shared by 2 processes"),
    ):
        done = Group(2, command, *arguments, *more).finish()
        assert [status for status, _ in done] == [2, 2], done
        assert all(told in text for _, text in done), done


def test_a_damaged_checkpoint_in_shards_is_named(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(tiny(updates=2), folder, out, quiet=True)
    (out / "checkpoint.json").write_text('{"format": "rankfold-sharded-checkpoint-1", "folder": "checkpoint-9"}')
    with pytest.raises(DataError, match=r"checkpoint.json: not a checkpoint of a training run"):
        train(tiny(updates=3), folder, out, resume=True, quiet=True)


def test_a_model_is_not_loaded_in_shards_by_one_process(folder: Path, tmp_path: Path) -> None:
    train(tiny(updates=2), folder, tmp_path / "run", quiet=True)
    with pytest.raises(UnsupportedError, match="started alone"):
        load_any(tmp_path / "run" / "best", shards=2)
