"""Checkpoints: to the last bit and back, refused when damaged, and never lost to a full disk."""

import json
import math
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from rankfold.data.weights import load_tensors, save_tensors
from rankfold.errors import DataError
from rankfold.models.block_hmm import BlockCarried
from rankfold.models.catalog import AnyModel
from rankfold.training.checkpoint import FORMAT, Progress, load_checkpoint, save_checkpoint, update_seed
from rankfold.training.config import Config
from rankfold.training.corpus import Corpus
from rankfold.training.schedule import Plateau
from rankfold.training.setup import optimizer
from tests.training.runs import FAMILIES, corpus_of, expect_equal, fresh_model, tiny, write_corpus

CPU = torch.device("cpu")
PROGRESS = Progress(
    7, 2, 3, 1 / 3, -123.45678901234567, 99, 1234, True, False, Plateau(17.000000000000004, 3, 2, 0.0625)
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return corpus_of(tiny(), write_corpus(tmp_path_factory.mktemp("data")))


def trained(config: Config, corpus: Corpus, steps: int = 2) -> tuple[AnyModel, torch.optim.Optimizer, Any]:
    """A model and its optimiser after a few steps, and a state to carry."""
    model = fresh_model(config, corpus)
    steps_of = optimizer(model, config.train)
    batch = corpus.epoch(config.data, 1, 0)[0]
    for i in range(steps):
        steps_of.zero_grad()
        p = model.potentials(batch, generator=torch.Generator().manual_seed(update_seed(1, i)))
        (-model.log_z(p).sum()).backward()
        steps_of.step()
    with torch.no_grad():
        return model, steps_of, model.carry(model.potentials(batch))


def contents(model: AnyModel, steps_of: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    found = dict(model.state_dict())
    for i, state in steps_of.state_dict()["state"].items():
        found.update({f"{i}.{name}": x for name, x in state.items()})
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["adamw", "adam"])
def test_all_of_it_comes_back(family: str, kind: str, corpus: Corpus, tmp_path: Path) -> None:
    config = tiny(family=family, optimizer=kind)
    model, steps_of, carried = trained(config, corpus)
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, model, steps_of, PROGRESS, carried, "abc")
    loaded = load_checkpoint(path)
    assert loaded.progress == PROGRESS
    assert loaded.corpus == "abc"
    other = fresh_model(config, corpus, seed=99)
    other_steps = optimizer(other, config.train)
    loaded.fill(other, other_steps)
    expect_equal(contents(model, steps_of), contents(other, other_steps))
    again = loaded.carried_state(other, CPU)
    if family == "block":
        assert isinstance(again, BlockCarried)
        assert again.states.dtype == torch.int64
        assert all(torch.equal(x, y) for x, y in zip(again, carried, strict=True))
    else:
        assert isinstance(again, torch.Tensor)
        assert torch.equal(again, carried)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_next_step_is_the_same(family: str, corpus: Corpus, tmp_path: Path) -> None:
    config = tiny(family=family, weight_decay=0.1)
    model, steps_of, _ = trained(config, corpus)
    save_checkpoint(tmp_path / "c", model, steps_of, Progress(), None, "")
    other = fresh_model(config, corpus)
    other_steps = optimizer(other, config.train)
    load_checkpoint(tmp_path / "c").fill(other, other_steps)
    batch = corpus.epoch(config.data, 1, 0)[1]
    for net, steps in ((model, steps_of), (other, other_steps)):
        steps.zero_grad()
        (-net.log_likelihood(batch).sum()).backward()
        steps.step()
    expect_equal(contents(model, steps_of), contents(other, other_steps))


def test_before_the_first_update(corpus: Corpus, tmp_path: Path) -> None:
    config = tiny()
    model, steps_of, _ = trained(config, corpus, steps=0)
    save_checkpoint(tmp_path / "c", model, steps_of, Progress(), None, "")
    loaded = load_checkpoint(tmp_path / "c")
    assert loaded.progress == Progress()
    assert loaded.progress.plateau.best == math.inf
    assert loaded.carried_state(model, CPU) is None
    loaded.fill(model, steps_of)
    assert steps_of.state_dict()["state"] == {}


def test_equal_states_are_equal_bytes(corpus: Corpus, tmp_path: Path) -> None:
    model, steps_of, carried = trained(tiny(), corpus)
    for name in "ab":
        save_checkpoint(tmp_path / name, model, steps_of, PROGRESS, carried, "abc")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_checkpoint_of_another_model(corpus: Corpus, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c", *trained(tiny(), corpus)[:2], Progress(), None, "")
    for settings in ({"rank": 5}, {"family": "hmm"}, {"num_layers": 2}):
        model = fresh_model(tiny(**settings), corpus)
        with pytest.raises(DataError, match=r"c: not a checkpoint of this recipe's model"):
            load_checkpoint(tmp_path / "c").fill(model, optimizer(model, tiny().train))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_a_truncated_checkpoint(share: float, corpus: Corpus, tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, *trained(tiny(), corpus)[:2], Progress(), None, "")
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(DataError, match=r"c.safetensors: (cut short or damaged|the file is empty)"):
        load_checkpoint(path)


def test_a_damaged_and_a_missing_checkpoint(corpus: Corpus, tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    with pytest.raises(DataError, match=r"c.safetensors: no such file"):
        load_checkpoint(path)
    save_checkpoint(path, *trained(tiny(), corpus)[:2], Progress(), None, "")
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"c.safetensors: damaged: the content does not give the checksum"):
        load_checkpoint(path)


GOOD: dict[str, Any] = {"format": FORMAT, "corpus": "", "progress": asdict(Progress())}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (None, "not a checkpoint of a training run"),
        ("{", "not a checkpoint of a training run"),
        ("[1]", "not a checkpoint of a training run"),
        (json.dumps({**GOOD, "format": "rankfold-checkpoint-2"}), f"'rankfold-checkpoint-2', but .* reads '{FORMAT}'"),
        (json.dumps({**GOOD, "progress": {}}), "not a checkpoint of a training run"),
        (json.dumps({**GOOD, "progress": {**GOOD["progress"], "extra": 1}}), "not a checkpoint of a training run"),
        (json.dumps({**GOOD, "progress": {**GOOD["progress"], "plateau": None}}), "not a checkpoint of a training run"),
        (json.dumps({name: x for name, x in GOOD.items() if name != "corpus"}), "not a checkpoint of a training run"),
    ],
    ids=["none", "torn", "list", "format", "empty", "extra", "plateau", "no-corpus"],
)
def test_files_of_another_kind(state: str | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    save_tensors(path, {"x": torch.zeros(1)}, {} if state is None else {"state": state})
    with pytest.raises(DataError, match=rf"c.safetensors: .*{words}"):
        load_checkpoint(path)


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """Writes beyond so many bytes of a file fail: what a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [0, 100, 4096])
def test_a_full_disk_keeps_the_earlier_checkpoint(size: int, corpus: Corpus, tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    model, steps_of, carried = trained(tiny(), corpus)
    save_checkpoint(path, model, steps_of, PROGRESS, carried, "abc")
    before = path.read_bytes()
    assert len(before) > size
    with torch.no_grad():
        next(model.parameters()).zero_()
    with no_file_above(size), pytest.raises(OSError, match=r"c.safetensors could not be written(.|\n)*untouched"):
        save_checkpoint(path, model, steps_of, Progress(8), carried, "abc")
    assert path.read_bytes() == before
    assert load_checkpoint(path).progress == PROGRESS
    assert [item.name for item in tmp_path.iterdir()] == ["c.safetensors"]
    save_checkpoint(path, model, steps_of, Progress(8), carried, "abc")
    assert load_checkpoint(path).progress.update == 8


def test_half_a_file_beside_it_does_no_harm(corpus: Corpus, tmp_path: Path) -> None:
    """What a kill while writing leaves behind."""
    path = tmp_path / "c.safetensors"
    model, steps_of, _ = trained(tiny(), corpus)
    save_checkpoint(path, model, steps_of, Progress(1), None, "")
    (tmp_path / "c.safetensors.part").write_bytes(b"half")
    assert load_checkpoint(path).progress.update == 1
    save_checkpoint(path, model, steps_of, Progress(2), None, "")
    assert load_checkpoint(path).progress.update == 2


def test_the_file_is_plain_safetensors(corpus: Corpus, tmp_path: Path) -> None:
    model, steps_of, carried = trained(tiny(family="block"), corpus)
    save_checkpoint(tmp_path / "c", model, steps_of, Progress(), carried, "")
    names = load_tensors(tmp_path / "c")[0].keys()
    assert {name.split(".")[0] for name in names} == {"model", "optimizer", "carried"}


def test_updates_share_no_random_numbers() -> None:
    def draw(seed: int, update: int) -> tuple[float, ...]:
        return tuple(torch.rand(4, generator=torch.Generator().manual_seed(update_seed(seed, update))).tolist())

    drawn = {(seed, update): draw(seed, update) for seed in (0, 1, 2, 11, 2**63 - 1) for update in (0, 1, 2, 12)}
    assert len(set(drawn.values())) == len(drawn)
    assert draw(1, 2) == drawn[1, 2]


BAD_PROGRESS: list[dict[str, Any]] = [
    *({name: value} for name in asdict(Progress()) for value in ("x", None, [1], -1.5, {}, True) if name != "plateau"),
    {"update": -1},
    {"update": 2**64},
    {"seconds": math.nan},
    {"plateau": {**asdict(Plateau()), "best": "x"}},
    {"plateau": {**asdict(Plateau()), "since_best": 0.5}},
]


def test_signed_progress_of_wrong_types(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    for change in BAD_PROGRESS:
        (name, value), *_ = change.items()
        if type(value) is type(getattr(Progress(), name)) and name != "plateau" and value is True:
            continue  # a truth value where one belongs
        if name in ("seconds", "window_log_likelihood") and value == -1.5:
            continue
        state = json.dumps({**GOOD, "progress": {**GOOD["progress"], **change}})
        save_tensors(path, {"x": torch.zeros(1)}, {"state": state})
        with pytest.raises(DataError, match=r"c.safetensors: not a checkpoint of a training run"):
            load_checkpoint(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: {"optimizer.0.exp_avg": t["optimizer.0.exp_avg"].long()},
        lambda t: {"optimizer.0.exp_avg": t["optimizer.0.exp_avg"][:1]},
        lambda t: {"optimizer.0.step": torch.zeros(3)},
        lambda t: {"optimizer.x.step": torch.zeros(())},
        lambda t: {"optimizer.99.step": torch.zeros(())},
        lambda t: {"optimizer.0.more": torch.zeros(())},
        lambda t: {"optimizer": torch.zeros(()), "optimizer.": torch.zeros(())},
        lambda t: {name: x.long() for name, x in t.items() if name.startswith("model.")},
        lambda t: {"model.more": torch.zeros(())},
    ],
)
def test_signed_tensors_of_another_form(change: Callable[[Any], Any], corpus: Corpus, tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    model, steps_of, _ = trained(tiny(), corpus)
    save_checkpoint(path, model, steps_of, Progress(), None, "")
    tensors, metadata = load_tensors(path)
    save_tensors(path, {**tensors, **change(tensors)}, metadata)
    before = contents(model, steps_of)
    with pytest.raises(DataError, match=r"c.safetensors: not a checkpoint of this recipe's model"):
        load_checkpoint(path).fill(model, steps_of)
    expect_equal(contents(model, steps_of), before)
