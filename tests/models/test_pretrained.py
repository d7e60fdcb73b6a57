"""Models on disk: the same bits back, and folders that are refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rankfold import DataError, DomainError, UnsupportedError
from rankfold.data.vocab import Vocabulary
from rankfold.data.weights import load_tensors, save_tensors
from rankfold.models import HMM, BlockHMM, FrameConfig, GrammarConfig, ModelConfig, RankHMM, build_model, load_model
from rankfold.models.catalog import AnyModel
from rankfold.models.pretrained import load_any
from tests.models.cases import BY_NAME, CASES, Case, some_strings

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
FAMILIES = [
    "hmm-neural-3",
    "lhmm-free-3-2",
    "banded-neural-4-2-1",
    "block-neural-6-2",
    "block-free-6-2",
    "rank-free-3-2",
]
families = pytest.mark.parametrize("name", FAMILIES)


def expect_same(one: AnyModel, other: AnyModel) -> None:
    """Every parameter, buffer and answer bit by bit."""
    assert type(other) is type(one)
    assert other.config == one.config
    assert other.num_words == one.num_words
    mine, its = (dict([*model.named_parameters(), *model.named_buffers()]) for model in (one, other))
    assert mine.keys() == its.keys()
    for name, tensor in mine.items():
        assert its[name].dtype == tensor.dtype, name
        assert torch.equal(its[name], tensor), name
    batch = some_strings()
    assert torch.equal(other.log_likelihood(batch), one.log_likelihood(batch))
    assert all(parameter.requires_grad for parameter in other.parameters())


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_round_trip(case: Case, dtype: torch.dtype, tmp_path: Path) -> None:
    model = case.build().to(dtype)
    model.save_pretrained(tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["config.json", "model.safetensors"]
    loaded = load_model(tmp_path / "model")
    expect_same(model, loaded)
    assert loaded.vocabulary is None


@every_case
def test_round_trip_in_shards(case: Case, tmp_path: Path) -> None:
    model = case.build()
    size = sum(x.numel() * x.element_size() for x in model.state_dict().values())
    model.save_pretrained(tmp_path, max_shard_bytes=size // 2)
    assert (tmp_path / "model.safetensors.index.json").exists()
    assert not (tmp_path / "model.safetensors").exists()
    expect_same(model, load_model(str(tmp_path)))


@families
def test_saved_over_an_earlier_one(name: str, tmp_path: Path) -> None:
    BY_NAME["hmm-free-1"].plain().save_pretrained(tmp_path, max_shard_bytes=8)
    model = BY_NAME[name].build()
    model.save_pretrained(tmp_path)
    assert not (tmp_path / "model.safetensors.index.json").exists()
    expect_same(model, type(model).from_pretrained(tmp_path))


MINE = {"config.json": "{}", "vocab.json": '{"format": "mine"}', "frames.json": "[]", "model.safetensors": "mine"}


@pytest.mark.parametrize("name", [*MINE, "model.safetensors.index.json"])
def test_a_file_of_somebody_else_is_not_written_over(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(MINE.get(name, "mine"))
    with pytest.raises(DataError, match=name):
        BY_NAME["hmm-free-1"].plain().save_pretrained(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: MINE.get(name, "mine")}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_tables_with_zeros(dtype: torch.dtype, tmp_path: Path) -> None:
    start, transition = torch.tensor([1.0, 0.0], dtype=dtype), torch.tensor([[0.0, 1.0], [0.5, 0.5]], dtype=dtype)
    model = HMM.from_tables(start, transition, torch.tensor([[0.5, 0.5, 0.0], [0.25, 0.0, 0.75]], dtype=dtype))
    model.save_pretrained(tmp_path)
    expect_same(model, load_model(tmp_path))


def test_another_family_is_refused(tmp_path: Path) -> None:
    BY_NAME["rank-neural-3-2"].plain().save_pretrained(tmp_path)
    for cls in (HMM, BlockHMM):
        with pytest.raises(UnsupportedError, match=f"holds a RankHMM, not a {cls.__name__}.*\n.*rankfold.load"):
            cls.from_pretrained(tmp_path)
    assert isinstance(RankHMM.from_pretrained(tmp_path), RankHMM)


VOCABULARY = Vocabulary(("<unk>", "<eos>", "word"), (0, 2, 5))


def test_vocabulary(tmp_path: Path) -> None:
    model = BY_NAME["hmm-neural-3"].plain()
    model.vocabulary = VOCABULARY
    model.save_pretrained(tmp_path)
    assert load_model(tmp_path).vocabulary == VOCABULARY
    Vocabulary(("<unk>", "<eos>", "other"), (0, 2, 5)).save(tmp_path / "vocab.json")
    with pytest.raises(DataError, match=r"vocab\.json is the vocabulary of another model"):
        load_model(tmp_path)
    (tmp_path / "vocab.json").unlink()
    with pytest.raises(DataError, match=r"vocab\.json: no such file"):
        load_model(tmp_path)


def test_a_vocabulary_of_another_size_is_not_saved(tmp_path: Path) -> None:
    model = BY_NAME["hmm-neural-3"].plain()
    model.vocabulary = Vocabulary(("<unk>", "<eos>"), (0, 2))
    with pytest.raises(DomainError, match="the vocabulary has 2 words, but the model 3"):
        model.save_pretrained(tmp_path / "model")
    assert not list(tmp_path.rglob("*.json"))


def edited(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """config.json after a change in place."""
    path = folder / "config.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("name", ["lhmm-free-3-2", "block-free-6-2"])
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda c: c["model"].update(num_stats=3), "unknown key num_stats.*\n.*num_states"),
        (lambda c: c["model"].update(num_states="3"), "num_states is '3', but a whole number"),
        (lambda c: c["model"].update(family="hhmm"), "family is 'hhmm', but one of"),
        (lambda c: c.update(version=2), "format version 2, but this release reads 1"),
        (lambda c: c.pop("version"), "format version None"),
        (lambda c: c.update(format="other"), "not a model"),
        (lambda c: c.pop("num_words"), '"num_words".*needed'),
        (lambda c: c.update(num_words=3.0), '"num_words".*needed'),
        (lambda c: c.update(dtype="float16"), '"dtype".*needed'),
        (lambda c: c.pop("model"), '"model".*needed'),
        (lambda c: c.update(vocabulary=3), '"vocabulary".*needed'),
        (lambda c: c.pop("vocabulary"), '"vocabulary".*needed'),
    ],
)
def test_a_configuration_that_is_refused(
    name: str, change: Callable[[dict[str, Any]], object], text: str, tmp_path: Path
) -> None:
    BY_NAME[name].plain().save_pretrained(tmp_path)
    edited(tmp_path, change)
    with pytest.raises(DataError, match=text) as caught:
        load_model(tmp_path)
    assert "config.json" in str(caught.value)


@families
@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(num_words=4),
        lambda c: c.update(num_words=2),
        lambda c: c["model"].update(num_states=12),
        lambda c: c["model"].update(neural=not c["model"]["neural"]),
    ],
    ids=["more words", "fewer words", "more states", "other network"],
)
def test_weights_of_another_shape(name: str, change: Callable[[dict[str, Any]], object], tmp_path: Path) -> None:
    BY_NAME[name].plain().save_pretrained(tmp_path)
    edited(tmp_path, change)
    with pytest.raises(DataError, match=str(tmp_path)):
        load_model(tmp_path)


@pytest.mark.parametrize("num_clusters", [1, 3, 6])
def test_clusters_of_another_number(num_clusters: int, tmp_path: Path) -> None:
    BY_NAME["block-neural-6-2"].plain().save_pretrained(tmp_path)
    edited(tmp_path, lambda c: c["model"].update(num_clusters=num_clusters))
    with pytest.raises(DataError, match=str(tmp_path)):
        load_model(tmp_path)


def test_weights_of_another_model(tmp_path: Path) -> None:
    BY_NAME["hmm-neural-3"].plain().save_pretrained(tmp_path / "a")
    BY_NAME["block-free-6-2"].plain().save_pretrained(tmp_path / "b")
    shutil.copy(tmp_path / "a" / "model.safetensors", tmp_path / "b" / "model.safetensors")
    with pytest.raises(DataError, match=r"hold no 'blocks\.members\.cluster'"):
        load_model(tmp_path / "b")


def test_damaged_files(tmp_path: Path) -> None:
    BY_NAME["hmm-neural-3"].plain().save_pretrained(tmp_path)
    config, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    text, data = config.read_text(), weights.read_bytes()
    for broken in (text[:-5], text[: len(text) // 2], "", "[]", "3", '{"format": "rankfold-model"}'):
        config.write_text(broken)
        with pytest.raises(DataError, match=r"config\.json"):
            load_model(tmp_path)
    config.write_text(text)
    weights.write_bytes(data[:-3])
    with pytest.raises(DataError, match=r"model\.safetensors"):
        load_model(tmp_path)
    weights.write_bytes(data)
    load_model(tmp_path)


def test_no_model_at_all(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"config\.json: no such file; the config\.json of a model"):
        load_model(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="is a file, but a model is a folder"):
        load_model(tmp_path / "file")
    BY_NAME["hmm-neural-3"].plain().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"model\.safetensors"):
        load_model(tmp_path)


def test_the_global_generator_is_left_alone(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    BY_NAME["block-neural-6-2"].plain().save_pretrained(tmp_path)
    load_model(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


WRONG_SIZES = [10**6 + 1, 50_000_000, 10**9, 10**15, 2**63 - 1]


@pytest.mark.parametrize("size", WRONG_SIZES)
@pytest.mark.parametrize(
    "made",
    [
        (ModelConfig("hmm", 4, dim=3), ("num_states", "dim", "num_layers")),
        (ModelConfig("lhmm", 4, 3, neural=False), ("num_states", "rank")),
        (ModelConfig("rank", 4, 3, dim=3), ("num_states", "rank", "dim", "num_layers")),
        (GrammarConfig("tnpcfg", 3, 4, 3, dim=3), ("num_nonterminals", "num_preterminals", "rank", "num_layers")),
        (GrammarConfig("npcfg", 3, 4, neural=False), ("num_nonterminals", "num_preterminals")),
        (FrameConfig("hsmm", num_states=4, durations="categorical"), ("num_states", "max_duration", "num_features")),
        (FrameConfig("frame_lhmm", num_states=4, rank=3, neural=True, dim=3), ("num_states", "rank", "num_layers")),
    ],
    ids=lambda made: made[0].family,
)
@pytest.mark.parametrize("shards", [None, 64])
def test_sizes_are_held_to_the_weights_before_anything_is_made(
    made: tuple[Any, tuple[str, ...]], size: int, shards: int | None, tmp_path: Path
) -> None:
    """Each of these would take all memory, or years."""
    config, names = made
    build_model(config, 5).save_pretrained(tmp_path, max_shard_bytes=shards)
    good = (tmp_path / "config.json").read_text()
    for name in (*names, "num_words"):
        content = json.loads(good)
        (content if name == "num_words" else content["model"])[name] = size
        (tmp_path / "config.json").write_text(json.dumps(content))
        with pytest.raises((DataError, DomainError), match=r"config\.json"):
            load_any(tmp_path)


@pytest.mark.parametrize("device", ["cuda:99", "nonsense", "", 3.5])
def test_a_device_that_is_not_here(device: Any, tmp_path: Path) -> None:
    BY_NAME["hmm-neural-3"].build().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedError, match=r"device is .*, which torch has not here(.|\n)*Use cpu"):
        load_model(tmp_path, device=device)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers(value: float, tmp_path: Path) -> None:
    model = BY_NAME["lhmm-free-3-2"].build()
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] = value
    model.save_pretrained(tmp_path)
    with pytest.raises(DataError, match="holds NaN or infinity"):
        load_model(tmp_path)


def test_weights_of_another_type_and_a_configuration_without_a_vocabulary(tmp_path: Path) -> None:
    BY_NAME["hmm-neural-3"].build().save_pretrained(tmp_path)
    tensors, _ = load_tensors(tmp_path / "model.safetensors")
    name = min(tensors)
    save_tensors(tmp_path / "model.safetensors", {**tensors, name: tensors[name].to(torch.int64)})
    with pytest.raises(DataError, match=r"is torch\.int64, but the model has torch\.float32"):
        load_model(tmp_path)
    edited(tmp_path, lambda content: content.pop("vocabulary"))
    with pytest.raises(DataError, match='"vocabulary" are needed'):
        load_model(tmp_path)
