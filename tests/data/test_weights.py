"""Tensors on disk: every bit comes back, damage is seen, and a failed write leaves what was there."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rankfold.data.sharded_weights import load_sharded, save_sharded
from rankfold.data.weights import CHECKSUM, DTYPES, load_tensors, save_tensors
from rankfold.errors import DataError, DomainError, UnsupportedError
from rankfold.files import write_text

META = {"step": "3", "name": "\u00e4"}


def small() -> dict[str, Tensor]:
    return {"b": torch.arange(6.0).reshape(2, 3), "a": torch.tensor([1, -2])}


def same(x: dict[str, Tensor], y: dict[str, Tensor]) -> bool:
    return x.keys() == y.keys() and all(
        x[key].dtype == y[key].dtype and x[key].shape == y[key].shape and torch.equal(x[key], y[key]) for key in x
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "make",
    [lambda x: x, lambda x: x[1, 2], lambda x: x[:1, 0], lambda x: x[:0], lambda x: x[1:, 1:2]],
    ids=["all", "one number", "one entry", "nothing", "a column"],
)
def test_every_bit_comes_back(tmp_path: Path, dtype: torch.dtype, make: Callable[[Tensor], Tensor]) -> None:
    tensors = {"x": make(torch.arange(15).reshape(3, 5) * 3 - 7).to(dtype)}
    save_tensors(tmp_path / "w.safetensors", tensors, META)
    loaded, metadata = load_tensors(tmp_path / "w.safetensors")
    assert same(loaded, tensors)
    assert metadata == META
    # The library itself reads the file, too.
    assert same(load_file(tmp_path / "w.safetensors"), tensors)
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]


def test_nan_and_signed_zero_keep_their_bits(tmp_path: Path) -> None:
    x = torch.tensor([float("nan"), -0.0, float("-inf"), 5e-324], dtype=torch.float64)
    save_tensors(tmp_path / "w", {"x": x})
    assert torch.equal(load_tensors(tmp_path / "w")[0]["x"].view(torch.int64), x.view(torch.int64))


def test_strided_tied_and_trained_tensors_are_written_in_full(tmp_path: Path) -> None:
    table = torch.nn.Parameter(torch.arange(12.0).reshape(3, 4))
    tensors = {"table": table, "tied": table, "turned": table.T, "part": table[:, 1::2]}
    save_tensors(tmp_path / "w", tensors)
    loaded, metadata = load_tensors(tmp_path / "w")
    assert same(loaded, {name: x.detach() for name, x in tensors.items()})
    assert metadata == {}
    loaded["tied"].zero_()
    assert same({"table": loaded["table"]}, {"table": table.detach()})


def test_no_tensors_and_equal_bytes(tmp_path: Path) -> None:
    save_tensors(tmp_path / "none", {})
    assert load_tensors(tmp_path / "none") == ({}, {})
    tensors = small()
    save_tensors(tmp_path / "one", tensors, META)
    save_tensors(tmp_path / "two", dict(reversed(tensors.items())), dict(reversed(META.items())))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_loaded_tensors_do_not_depend_on_the_file(tmp_path: Path) -> None:
    save_tensors(tmp_path / "w", small())
    loaded, _ = load_tensors(tmp_path / "w")
    content = (tmp_path / "w").read_bytes()
    with (tmp_path / "w").open("r+b") as stream:
        stream.write(b"\xff" * len(content))
    assert same(loaded, small())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tensors_of_a_gpu(tmp_path: Path) -> None:
    save_tensors(tmp_path / "w", {name: x.cuda() for name, x in small().items()})
    assert same(load_tensors(tmp_path / "w")[0], small())
    assert load_tensors(tmp_path / "w", "cuda")[0]["a"].is_cuda


def test_every_flipped_byte_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "w"
    save_tensors(path, small(), META)
    content = path.read_bytes()
    padding = range(content.rindex(b"}") + 1, 8 + int.from_bytes(content[:8], "little"))
    for i in set(range(len(content))) - set(padding):
        for mask in (0x01, 0x20, 0x80):
            path.write_bytes(content[:i] + bytes([content[i] ^ mask]) + content[i + 1 :])
            with pytest.raises(DataError, match=str(path)):
                load_tensors(path)


@pytest.mark.parametrize(
    ("old", "new"), [(b"[2,3]", b"[3,2]"), (b'"I64"', b'"F64"'), (b'"b":', b'"c":'), (b'"step":"3"', b'"step":"4"')]
)
def test_a_header_that_still_makes_sense_is_seen(tmp_path: Path, old: bytes, new: bytes) -> None:
    path = tmp_path / "w"
    save_tensors(path, small(), META)
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))
    load_file(path)  # the format has nothing against it
    with pytest.raises(DataError, match="does not give the checksum"):
        load_tensors(path)


def test_every_other_length_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "w"
    save_tensors(path, small(), META)
    content = path.read_bytes()
    for i in range(len(content)):
        path.write_bytes(content[:i])
        with pytest.raises(DataError, match="Copy it again"):
            load_tensors(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(DataError, match="cut short or damaged"):
        load_tensors(path)


def test_what_is_not_ours_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none: no such file"):
        load_tensors(tmp_path / "none")
    with pytest.raises(DataError, match="is a folder"):
        load_tensors(tmp_path)
    (tmp_path / "empty").touch()
    with pytest.raises(DataError, match="empty: the file is empty"):
        load_tensors(tmp_path / "empty")
    save_file(small(), tmp_path / "foreign")
    with pytest.raises(DataError, match=r"no checksum(.|\n)*load_file"):
        load_tensors(tmp_path / "foreign")


@pytest.mark.parametrize(
    ("tensors", "metadata", "error", "words"),
    [
        ({"x": torch.zeros(2, dtype=torch.complex64)}, {}, UnsupportedError, "complex64"),
        ({"x": torch.zeros(2, device="meta")}, {}, UnsupportedError, "meta"),
        ({"x": torch.zeros(2).to_sparse()}, {}, UnsupportedError, "sparse"),
        ({"__metadata__": torch.zeros(2)}, {}, DomainError, "is taken"),
        ({}, {CHECKSUM: "x"}, DomainError, "is taken"),
        ({}, {"step": 3}, DomainError, "are strings"),
    ],
)
def test_unsupported(tmp_path: Path, tensors: Any, metadata: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        save_tensors(tmp_path / "w", tensors, metadata)
    assert list(tmp_path.iterdir()) == []


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


SAVES: list[Callable[[Path], object]] = [lambda path: save_tensors(path, small()), lambda path: write_text(path, "new")]


@pytest.mark.parametrize("save", SAVES, ids=["tensors", "text"])
@pytest.mark.parametrize("broken", ["fsync", "write", "replace"])
def test_a_full_disk_leaves_the_earlier_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: Callable[[Path], object], broken: str
) -> None:
    path = tmp_path / "w"
    path.write_bytes(b"old")
    with monkeypatch.context() as patch:
        if broken == "write":
            stream = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115  (takes nothing, as a full disk)
            patch.setattr(os, "fdopen", lambda *_: stream)
        else:
            patch.setattr(os, broken, full)
        with pytest.raises(OSError, match="earlier file of that name is untouched") as caught:
            save(path)
    assert caught.value.errno == errno.ENOSPC
    assert "No space left" in str(caught.value)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["w"]


@pytest.mark.parametrize("save", SAVES, ids=["tensors", "text"])
def test_links_are_not_written_through(tmp_path: Path, save: Callable[[Path], object]) -> None:
    """Neither by the name of the file, nor by that of what is written before it."""
    mine = tmp_path / "mine"
    mine.write_text("precious")
    for name in ("w", "w.part"):
        (tmp_path / name).symlink_to(mine)
    save(tmp_path / "w")
    assert mine.read_text() == "precious"
    assert not (tmp_path / "w").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["mine", "w"]


def test_a_folder_that_is_missing_or_not_ours(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none/w could not be written"):
        save_tensors(tmp_path / "none" / "w", small())
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError, match="w could not be written"):
        save_tensors(tmp_path / "w", small())


@pytest.mark.parametrize(("number", "raises"), [(errno.EIO, True), (errno.EINVAL, False)])
def test_a_folder_that_cannot_be_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, raises: bool
) -> None:
    fsync, calls = os.fsync, []

    def second_fails(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", second_fails)
    if raises:
        with pytest.raises(OSError, match="w is written, but its folder could not be synced"):
            write_text(tmp_path / "w", "new")
    else:
        write_text(tmp_path / "w", "new")
    assert (tmp_path / "w").read_text() == "new"


def test_a_kill_while_writing_leaves_the_earlier_file(tmp_path: Path) -> None:
    path = tmp_path / "w"
    save_tensors(path, small(), {"step": "1"})
    code = (
        "import os, signal, sys, rankfold.data.weights as weights\n"
        "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "weights.save_tensors(sys.argv[1], {}, {'step': '2'})\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == -9
    part = path.with_name("w.part")
    assert part.exists()
    part.write_bytes(b"x" * 10_000)  # longer than what comes
    assert load_tensors(path)[1] == {"step": "1"}
    save_tensors(path, small(), {"step": "3"})
    assert load_tensors(path)[1] == {"step": "3"}
    assert not part.exists()


def layers(value: float = 0.0) -> dict[str, Tensor]:
    return {f"layer{i}": torch.full((4,), value + i) for i in (10, 2, 1, 3)} | {"wide": torch.full((64,), value)}


def test_shards_hold_each_tensor_once(tmp_path: Path) -> None:
    files = save_sharded(tmp_path, layers(), max_shard_bytes=40, metadata=META)
    assert [path.name for path in files] == [
        "model-00001-of-00003.safetensors",
        "model-00002-of-00003.safetensors",
        "model-00003-of-00003.safetensors",
        "model.safetensors.index.json",
    ]
    index = json.loads(files[-1].read_text())
    assert index["metadata"]["total_size"] == 4 * 16 + 256
    shards = {"layer10": 0, "layer2": 0, "layer1": 1, "layer3": 1, "wide": 2}
    assert index["weight_map"] == {name: files[i].name for name, i in shards.items()}
    assert load_file(files[2]).keys() == {"wide"}
    loaded, metadata = load_sharded(tmp_path)
    assert same(loaded, layers())
    assert list(loaded) == list(layers())
    assert metadata == META


@pytest.mark.parametrize("limit", [None, 320, 10**9])
def test_below_the_limit_there_is_one_file(tmp_path: Path, limit: int | None) -> None:
    assert save_sharded(tmp_path / "new", layers(), stem="ema", max_shard_bytes=limit, metadata=META) == [
        tmp_path / "new" / "ema.safetensors"
    ]
    loaded, metadata = load_sharded(tmp_path / "new", "ema")
    assert same(loaded, layers())
    assert metadata == META


def test_one_tensor_is_one_file_and_a_limit_is_positive(tmp_path: Path) -> None:
    assert len(save_sharded(tmp_path, {"x": torch.ones(9)}, max_shard_bytes=1)) == 1
    with pytest.raises(DomainError, match="max_shard_bytes is 0"):
        save_sharded(tmp_path, layers(), max_shard_bytes=0)


LIMITS = [None, 40, 80]


@pytest.mark.parametrize("before", LIMITS)
@pytest.mark.parametrize("after", LIMITS)
@pytest.mark.parametrize("moves", range(7))
def test_no_interruption_mixes_old_and_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int | None, after: int | None, moves: int
) -> None:
    save_sharded(tmp_path, layers(0.0), max_shard_bytes=before)
    done = 0

    def limited(act: Callable[..., None]) -> Callable[..., None]:
        def step(*args: object, **kwargs: object) -> None:
            nonlocal done
            if not str(args[0]).endswith(".part") or act is replace:
                if done == moves:
                    raise KeyboardInterrupt
                done += 1
            act(*args, **kwargs)

        return step

    replace = os.replace
    interrupted = False
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", limited(os.replace))
        patch.setattr(Path, "unlink", limited(Path.unlink))
        try:
            save_sharded(tmp_path, layers(1.0), max_shard_bytes=after)
        except KeyboardInterrupt:
            interrupted = True
    if not interrupted:
        assert same(load_sharded(tmp_path)[0], layers(1.0))
        assert (tmp_path / "model.safetensors").exists() != (tmp_path / "model.safetensors.index.json").exists()
        return
    try:
        loaded, _ = load_sharded(tmp_path)
    except DataError:
        assert before == after is not None  # shards of the same names; nothing else may be refused
    else:
        assert same(loaded, layers(0.0)) or same(loaded, layers(1.0))


def test_a_missing_shard_and_a_bad_index_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"model.safetensors: no such file"):
        load_sharded(tmp_path)
    *shards, index = save_sharded(tmp_path, layers(), max_shard_bytes=40)
    shards[1].rename(tmp_path / "aside")
    with pytest.raises(DataError, match=r"model-00002-of-00003.safetensors: no such file, but .*index.json names"):
        load_sharded(tmp_path)
    (tmp_path / "aside").rename(shards[1])
    good = index.read_text()
    for bad in ["", "[]", "{}", '{"metadata": {}, "weight_map": 3}', good.replace("model-00001", "../model-00001")]:
        index.write_text(bad)
        with pytest.raises(DataError, match="not an index of shards"):
            load_sharded(tmp_path)
    index.write_text(good.replace("layer10", "layer11"))
    with pytest.raises(DataError, match="not of one saving"):
        load_sharded(tmp_path)


def test_texts_keep_their_characters(tmp_path: Path) -> None:
    write_text(tmp_path / "t", "a\r\n\u00e4\n")
    assert (tmp_path / "t").read_bytes() == b"a\r\n\xc3\xa4\n"
