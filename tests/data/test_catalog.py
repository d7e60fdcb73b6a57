"""Fetching texts: from folders and over loopback, whole, broken off, resumed and wrong."""

import gzip
import hashlib
import os
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rankfold.data import catalog
from rankfold.data.catalog import DATASETS, Dataset, Fetched, File, fetch
from rankfold.data.music import PianoRolls, read_piano_rolls
from rankfold.data.text import read_sentences, read_splits
from rankfold.errors import DataError
from tests.data.corpora import FOLDER, needs_texts
from tests.data.origin import Origin
from tests.data.recordings import needs_music

SPLITS = ("train", "valid", "test")
TEXTS = {split: f"a {split} sentence\n".encode() * 20_000 for split in SPLITS}  # several chunks each


@pytest.fixture
def origin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Origin]:
    monkeypatch.setenv("no_proxy", "*")
    with Origin({f"/origin/tiny.{split}.txt": text for split, text in TEXTS.items()}) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        files = tuple(
            File(
                split,
                f"{server.base}/origin/tiny.{split}.txt",
                hashlib.sha256(text).hexdigest(),
                len(text),
                20_000,
                60_000,
            )
            for split, text in TEXTS.items()
        )
        monkeypatch.setitem(DATASETS, "tiny", Dataset("tiny", "A tiny text.", "None.", files))
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def folder(tmp_path: Path, origin: Origin) -> Path:
    """A folder with the three splits under other names, one of them gzip."""
    path = tmp_path / "local"
    path.mkdir()
    (path / "tiny.train.txt.gz").write_bytes(gzip.compress(TEXTS["train"], mtime=0))
    (path / "tiny.valid.tokens").write_bytes(TEXTS["valid"])
    (path / "test.txt").write_bytes(TEXTS["test"])
    return path


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def test_download(origin: Origin, tmp_path: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    out = tmp_path / "new" / "folder"
    found = fetch("tiny", str(out), progress=lambda *call: calls.append(call))
    assert found == [Fetched(split, out / f"{split}.txt", "downloaded") for split in SPLITS]
    assert names(out) == ["test.txt", "train.txt", "valid.txt"]
    assert {split: (out / f"{split}.txt").read_bytes() for split in SPLITS} == TEXTS
    size = len(TEXTS["train"])
    done = [count for name, count, total in calls if (name, total) == ("train.txt", size)]
    assert len(done) > 2
    assert done == sorted(done)
    assert done[-1] == size
    assert len(read_splits(out)["train"]) == 20_000


def test_copy_from_a_folder(folder: Path, origin: Origin, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "valid.txt.part").write_bytes(b"an earlier try")
    found = fetch("tiny", out, source=folder)
    assert [(file.path.name, file.action) for file in found] == [
        ("train.txt.gz", "copied"),
        ("valid.txt", "copied"),
        ("test.txt", "copied"),
    ]
    assert names(out) == ["test.txt", "train.txt.gz", "valid.txt"]
    assert {split: text.num_words for split, text in read_splits(out).items()} == dict.fromkeys(SPLITS, 60_000)
    assert origin.asked == []
    assert names(folder) == ["test.txt", "tiny.train.txt.gz", "tiny.valid.tokens"]


def test_sources_of_other_kinds(folder: Path, origin: Origin, tmp_path: Path) -> None:
    assert fetch("tiny", tmp_path / "a", source=folder.as_uri())[0].action == "copied"
    folder.rename(tmp_path / "tiny")
    assert fetch("tiny", tmp_path / "b", source=str(tmp_path))[0].action == "copied"  # the folder above
    origin.files = {f"/mirror/tiny.{split}.txt": text for split, text in TEXTS.items()}
    assert fetch("tiny", tmp_path / "c", source=f"{origin.base}/mirror/")[0].action == "downloaded"
    with pytest.raises(DataError, match=r"http://, https:// or file://, not ftp://"):
        fetch("tiny", tmp_path / "d", source="ftp://example.org")
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("source", ["folder", None])
def test_good_files_stay(source: str | None, folder: Path, origin: Origin, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fetch("tiny", out, source=folder)
    (out / "valid.txt").unlink()
    before = {name: (out / name).stat().st_mtime_ns for name in names(out)}
    found = fetch("tiny", out, source=folder if source else None)
    assert [file.action for file in found] == ["already there", "copied" if source else "downloaded", "already there"]
    assert [file.path.name for file in found] == ["train.txt.gz", "valid.txt", "test.txt"]
    assert {name: (out / name).stat().st_mtime_ns for name in before} == before
    assert fetch("tiny", out, source=tmp_path / "gone")[1].action == "already there"  # nothing is missing


@pytest.mark.parametrize("name", ["train.txt", "test.txt.gz"])
def test_files_of_others_are_left_alone(name: str, origin: Origin, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"my own text\n")
    with pytest.raises(
        DataError, match=rf"(?s){name} exists and is not the \w+ text of tiny.*left as it is.*another folder"
    ):
        fetch("tiny", tmp_path)
    assert names(tmp_path) == [name]
    assert (tmp_path / name).read_bytes() == b"my own text\n"
    assert origin.asked == []


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("announces", [False, True])
def test_a_broken_connection_is_resumed(reset: bool, announces: bool, origin: Origin, tmp_path: Path) -> None:
    origin.break_after, origin.reset, origin.announces = 150_000, reset, announces
    with pytest.raises(DataError, match=r"(?s)tiny\.train\.txt: the connection broke.*is kept.*again goes on"):
        fetch("tiny", tmp_path)
    assert names(tmp_path) == ["train.txt.part"]
    size = (tmp_path / "train.txt.part").stat().st_size
    assert 0 < size <= 150_000 if reset else size == 150_000
    origin.break_after, origin.reset = None, False
    assert [file.action for file in fetch("tiny", tmp_path)] == ["downloaded"] * 3
    assert origin.asked[1] == ("/origin/tiny.train.txt", f"bytes={size}-")
    assert names(tmp_path) == ["test.txt", "train.txt", "valid.txt"]
    assert (tmp_path / "train.txt").read_bytes() == TEXTS["train"]


def test_a_server_without_ranges_starts_again(origin: Origin, tmp_path: Path) -> None:
    (tmp_path / "train.txt.part").write_bytes(TEXTS["train"][:1000])
    origin.ranges = False
    fetch("tiny", tmp_path)
    assert origin.asked[0][1] == "bytes=1000-"
    assert (tmp_path / "train.txt").read_bytes() == TEXTS["train"]


def test_a_server_that_sends_another_range(origin: Origin, tmp_path: Path) -> None:
    (tmp_path / "train.txt.part").write_bytes(TEXTS["train"][:1000])
    origin.shift = 10
    with pytest.raises(DataError, match=r"(?s)another part of the file.*--from FOLDER"):
        fetch("tiny", tmp_path)
    assert (tmp_path / "train.txt.part").read_bytes() == TEXTS["train"][:1000]


def test_a_whole_part_is_not_fetched_again(origin: Origin, tmp_path: Path) -> None:
    """The rename may be all that was missing."""
    (tmp_path / "train.txt.part").write_bytes(TEXTS["train"])
    fetch("tiny", tmp_path)
    assert [path for path, _ in origin.asked] == ["/origin/tiny.valid.txt", "/origin/tiny.test.txt"]


def test_a_wrong_checksum_is_kept_aside(origin: Origin, tmp_path: Path) -> None:
    good, bad = TEXTS["train"], TEXTS["train"].replace(b"sentence", b"santence", 1)
    origin.files["/origin/tiny.train.txt"] = bad
    expected, found = (hashlib.sha256(text).hexdigest() for text in (good, bad))
    for name in ("train.txt.bad", "train.txt.bad2"):
        with pytest.raises(
            DataError, match=rf"(?s)wrong checksum.*expected sha256 {expected}.*found +sha256 {found}.*{name}\."
        ):
            fetch("tiny", tmp_path)
        assert (tmp_path / name).read_bytes() == bad
    assert names(tmp_path) == ["train.txt.bad", "train.txt.bad2"]
    origin.files["/origin/tiny.train.txt"] = good
    assert fetch("tiny", tmp_path)[0].action == "downloaded"


def test_a_resumed_part_of_another_file_is_found_out(origin: Origin, tmp_path: Path) -> None:
    (tmp_path / "train.txt.part").write_bytes(b"x" * 1000)
    with pytest.raises(DataError, match="wrong checksum"):
        fetch("tiny", tmp_path)
    assert names(tmp_path) == ["train.txt.bad"]
    assert fetch("tiny", tmp_path)[0].action == "downloaded"


def test_another_file_at_the_address(origin: Origin, tmp_path: Path) -> None:
    origin.files["/origin/tiny.train.txt"] = b"<html>sorry</html>"
    with pytest.raises(DataError, match=r"(?s)the server has 18 bytes, but 340,000 were expected.*--from FOLDER"):
        fetch("tiny", tmp_path)
    assert names(tmp_path) == []
    origin.files["/origin/tiny.train.txt"] = TEXTS["train"] * 20
    origin.announces = False  # its end is not waited for
    with pytest.raises(DataError, match="wrong checksum"):
        fetch("tiny", tmp_path)
    assert len(TEXTS["train"]) < (tmp_path / "train.txt.bad").stat().st_size < 2 * len(TEXTS["train"])


def test_servers_that_do_not_answer(origin: Origin, tmp_path: Path) -> None:
    del origin.files["/origin/tiny.train.txt"]
    with pytest.raises(DataError, match=r"(?s)tiny\.train\.txt: the server answered 404 Not Found.*--from FOLDER"):
        fetch("tiny", tmp_path)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(DataError, match=r"(?s)cannot be reached.*--from FOLDER"):
            fetch("tiny", tmp_path, source=address)


def test_a_silent_server_is_given_up(origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(DataError, match=r"reached \(timed out\)"):
        fetch("tiny", tmp_path, source=f"http://127.0.0.1:{silent.getsockname()[1]}")


@pytest.mark.parametrize(
    "change", [lambda data: data[:-9], lambda data: data[:100] + b"x" + data[101:], lambda _: b"text"]
)
def test_damaged_gzip_in_a_folder(change: object, folder: Path, tmp_path: Path) -> None:
    path = folder / "tiny.train.txt.gz"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=r"(?s)tiny\.train\.txt\.gz is not the train text.*found +damaged gzip data"):
        fetch("tiny", tmp_path / "out", source=folder)
    assert names(tmp_path / "out") == ["train.txt.gz.bad"]
    assert path.exists()


def test_a_folder_without_the_files(folder: Path, tmp_path: Path) -> None:
    (folder / "test.txt").unlink()
    with pytest.raises(DataError, match=r"no file for the split 'test'; the folder holds tiny\.train"):
        fetch("tiny", tmp_path / "out", source=folder)
    assert not (tmp_path / "out").exists()  # found before the first copy


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full to stand for a full disk")
@pytest.mark.parametrize("local", [False, True])
def test_a_full_disk(local: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    name = "train.txt.gz.part" if local else "train.txt.part"
    with monkeypatch.context() as patch:
        stream = Path("/dev/full").open("wb")  # noqa: SIM115
        patch.setattr(os, "fdopen", lambda *_: stream)
        with pytest.raises(DataError, match=rf"(?s){name}: cannot be written: No space left on.*Free some space"):
            fetch("tiny", out, source=folder if local else None)
    assert len(fetch("tiny", out, source=folder if local else None)) == 3


@pytest.mark.parametrize("local", [False, True])
def test_links_are_not_written_through(local: bool, folder: Path, tmp_path: Path) -> None:
    out, mine = tmp_path / "out", tmp_path / "mine"
    out.mkdir()
    mine.write_text("precious")
    names_of = ("train.txt.gz.part", "train.txt.gz") if local else ("train.txt.part", "train.txt")
    for name in names_of:
        (out / name).symlink_to(mine if name.endswith(".part") else tmp_path / "none")
        with pytest.raises(DataError, match=name):
            fetch("tiny", out, source=folder if local else None)
        (out / name).unlink()
    assert mine.read_text() == "precious"
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "source", ["http://[::1", "file://[x", "ftp://[", "http://[]", "http://:x", "http://a b/", "//["]
)
def test_addresses_that_are_none(source: str, tmp_path: Path) -> None:
    with pytest.raises(DataError):
        fetch("ptb-lm", tmp_path, source=source)


def test_targets_that_are_no_folder(origin: Origin, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    for target in (tmp_path / "taken", tmp_path / "taken" / "below"):
        with pytest.raises(DataError, match=r"(?s)cannot be made a folder.*another one"):
            fetch("tiny", target)
    assert (tmp_path / "taken").read_text() == "mine"
    (tmp_path / "train.txt").mkdir()
    with pytest.raises(DataError, match=r"train\.txt exists and is not"):
        fetch("tiny", tmp_path)


def test_unknown_names() -> None:
    with pytest.raises(DataError, match=r"(?s)'ptb_lm' is not a dataset.*ptb-lm, wikitext-2.*Did you mean ptb-lm\?"):
        catalog.find_dataset("ptb_lm")
    with pytest.raises(DataError, match=r"(?s)'corpus' is not.*read_splits"):
        fetch("corpus", "nowhere")


def rolls(path: Path, seed: int = 0, *, packed: bool = True) -> PianoRolls:
    """A little set, written with or without compression."""
    draw = np.random.default_rng(seed)
    save = np.savez_compressed if packed else np.savez
    arrays = {}
    for split in SPLITS:
        arrays[f"{split}_bits"] = np.packbits(draw.random((40, 88)) < 0.1, axis=1)
        arrays[f"{split}_lengths"] = np.array([25, 15])
    save(path, **arrays)
    return read_piano_rolls(path)


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the music `song`, in the catalogue."""
    folder = tmp_path / "played"
    folder.mkdir()
    found = rolls(folder / "song.npz")
    file = File("song", "song.npz", found.sha256, (folder / "song.npz").stat().st_size, 6, 120)
    monkeypatch.setitem(
        DATASETS, "songs", Dataset("songs", "A song.", "None.", (file,), "music", "https://example.org")
    )
    return folder


def test_music_from_a_folder(played: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert fetch("songs", out, source=played) == [Fetched("song", out / "song.npz", "copied")]
    assert fetch("songs", out) == [Fetched("song", out / "song.npz", "already there")]
    # The same rolls packed otherwise are the same music; other rolls are not.
    rolls(played / "song.npz", packed=False)
    assert fetch("songs", tmp_path / "again", source=played)[0].action == "copied"
    rolls(played / "song.npz", seed=1)
    with pytest.raises(DataError, match=r"(?s)not the song music of songs: wrong checksum.*song\.npz\.bad"):
        fetch("songs", tmp_path / "other", source=played)
    (played / "song.npz").write_bytes(b"noise")
    with pytest.raises(DataError, match=r"(?s)wrong checksum.*no piano rolls"):
        fetch("songs", tmp_path / "noise", source=played)
    with pytest.raises(DataError, match=r"song\.npz exists and is not the song music"):
        fetch("songs", played)


def test_music_has_no_address_but_mirrors(played: Path, origin: Origin, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(DataError, match=r"(?s)no address.*public at https://example\.org.*--from FOLDER"):
        fetch("songs", out)
    with pytest.raises(DataError, match=r"gone/song\.npz.*the song music"):
        fetch("songs", out, source=tmp_path / "gone")
    assert not out.exists()
    body = (played / "song.npz").read_bytes()
    origin.files["/mirror/song.npz"], origin.break_after = body, 100
    with pytest.raises(DataError, match="the connection broke"):
        fetch("songs", out, source=f"{origin.base}/mirror")
    origin.break_after = None
    assert fetch("songs", out, source=f"{origin.base}/mirror")[0].action == "downloaded"
    assert origin.asked[-1] == ("/mirror/song.npz", "bytes=100-")
    assert (out / "song.npz").read_bytes() == body


TEXT_SETS = {name: dataset for name, dataset in DATASETS.items() if dataset.kind == "text"}


@pytest.mark.parametrize("dataset", TEXT_SETS.values(), ids=TEXT_SETS)
def test_entries_are_complete(dataset: Dataset) -> None:
    assert tuple(file.split for file in dataset.files) == SPLITS
    assert len({file.sha256 for file in dataset.files}) == 3
    for file in dataset.files:
        assert re.fullmatch(r"[0-9a-f]{64}", file.sha256)
        # A commit, not a branch, and a name that says the split.
        assert re.fullmatch(
            rf"https://raw\.githubusercontent\.com/\w+/\w+/[0-9a-f]{{40}}/.*{file.split}\.txt", file.url
        )
    assert dataset.description
    assert dataset.licence


@needs_texts
@pytest.mark.parametrize("dataset", TEXT_SETS.values(), ids=TEXT_SETS)
def test_entries_are_true(dataset: Dataset, tmp_path: Path) -> None:
    found = fetch(dataset.name, tmp_path, source=FOLDER)
    for file, fetched in zip(dataset.files, found, strict=True):
        text = read_sentences(fetched.path)
        assert (len(text), text.num_words) == (file.num_sentences, file.num_words)


@needs_music
def test_the_entry_of_music_is_true(tmp_path: Path) -> None:
    entry = DATASETS["music"]
    for file, fetched in zip(entry.files, fetch("music", tmp_path, source=FOLDER), strict=True):
        pieces = [piece for split in read_piano_rolls(fetched.path).splits.values() for piece in split]
        assert (len(pieces), sum(map(len, pieces))) == (file.num_sentences, file.num_words)
        assert fetched.path.stat().st_size == file.num_bytes
