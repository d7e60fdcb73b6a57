"""What is no regular file, or unpacks to far more than it is, is refused at once by every reader."""

import gzip
import os
import signal
import socket
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from rankfold import files
from rankfold.data.brackets import parse_trees, read_trees
from rankfold.data.clusters import read_clusters
from rankfold.data.frame_files import read_frames
from rankfold.data.frame_space import FrameSpace
from rankfold.data.music import read_piano_rolls
from rankfold.data.sharded_weights import load_sharded
from rankfold.data.text import read_sentences
from rankfold.data.vocab import Vocabulary
from rankfold.data.weights import load_tensors
from rankfold.errors import DataError
from rankfold.models.pretrained import load_model
from rankfold.settings import read_toml
from rankfold.training.run_dir import read_metrics

READERS: dict[str, Callable[[Path], object]] = {
    "a.txt": read_sentences,
    "a.txt.gz": read_sentences,
    "a.trees": read_trees,
    "a.mrg.gz": read_trees,
    "a.tsv": lambda path: read_clusters(path, ["a"]),
    "a.tsv.gz": lambda path: read_clusters(path, ["a"]),
    "a.npy": read_frames,
    "a.npz": read_frames,
    "a.csv": read_frames,
    "b.npz": read_piano_rolls,
    "frames.json": FrameSpace.load,
    "vocab.json": Vocabulary.load,
    "a.safetensors": load_tensors,
    "model.safetensors.index.json": lambda path: load_sharded(path.parent),
    "config.json": lambda path: load_model(path.parent),
    "a.toml": read_toml,
    "metrics.jsonl": read_metrics,
}


@pytest.fixture(autouse=True)
def _in_time() -> Iterator[None]:
    """A reader that waits is interrupted."""

    def late(*_: object) -> None:
        raise TimeoutError("a reader waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [pipe, listening, device, Path.mkdir, lambda path: path.symlink_to(path)])
@pytest.mark.parametrize("name", READERS)
def test_only_regular_files_are_read(name: str, make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / name)
    with pytest.raises(DataError, match=str(tmp_path)):
        READERS[name](tmp_path / name)


@pytest.mark.parametrize("name", ["a.txt.gz", "a.mrg.gz", "a.tsv.gz", "a.npz", "b.npz"])
def test_what_unpacks_to_far_more_than_it_is(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, num = tmp_path / name, 2**23
    if name.endswith(".npz"):
        np.savez_compressed(path, features=np.zeros((num // 8, 1)))
    else:
        path.write_bytes(gzip.compress(b"(A a)\n" * (num // 6)))
    assert num // 500 > path.stat().st_size
    monkeypatch.setattr(files, "PACKED", 2**20)
    with pytest.raises(DataError, match=rf"{name}: .* bytes that unpack to .* or more, but at most 1,048,576 or 200"):
        READERS[name](path)


def test_the_limit_of_what_is_packed(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(b"x" * 3_000_000)
    files.expect_unpacked(path, 600_000_000)
    with pytest.raises(DataError, match="3,000,000 bytes that unpack to 2,400,000,000"):
        files.expect_unpacked(path, 2_400_000_000)
    path.write_bytes(b"x")
    files.expect_unpacked(path, 2**28)


@pytest.mark.parametrize("shape", ["(9999999999999,)", "(3, 10)", "(-1, 2)", "(2.0, 2)", "[2, 2]", "(" * 5000])
@pytest.mark.parametrize("zipped", [False, True])
def test_headers_are_held_to_the_bytes_that_are_there(shape: str, zipped: bool, tmp_path: Path) -> None:
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(32)
    path = tmp_path / ("a.npz" if zipped else "a.npy")
    if zipped:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("features.npy", content)
    else:
        path.write_bytes(content)
    with pytest.raises(DataError, match=rf"{path.name}: cannot be read as arrays of numbers"):
        read_frames(path)


def test_long_lines_and_deep_trees_of_a_treebank(tmp_path: Path) -> None:
    path = tmp_path / "a.trees"
    for content, words in (
        (b"(S " + b"(A a) " * 200_000 + b")", "line 1: 1,200,004 bytes long, but at most 1,000,000"),
        (b"(A \n" * 100_001, "line 100001: brackets within brackets more than 100,000 deep"),
        (b"(" * 900_000, "line 1: a bracket without a label"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=words):
            read_trees(path)
    (tree,) = parse_trees("(S " + "(A a) " * 150_000 + ")")  # in time: each token once
    assert len(tree.children) == 150_000
