"""Reading sentences, and every rule a file can break."""

import gzip
import re
from pathlib import Path

import pytest

from rankfold.data.text import find_split, read_sentences, read_splits
from rankfold.errors import DataError
from tests.data.corpora import FOLDER, needs_texts

LINES = b" the cat sat \n\nA\tb  c\r\n \t\r\nlast"


def written(folder: Path, content: bytes, name: str = "corpus.txt") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", ["corpus.txt", "corpus.txt.gz"])
def test_one_sentence_a_line(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, gzip.compress(LINES, mtime=0) if name.endswith(".gz") else LINES, name)
    found = read_sentences(str(path))
    assert found.sentences == [["the", "cat", "sat"], ["A", "b", "c"], ["last"]]
    assert found.num_empty_lines == 2
    assert found.path == path
    assert (len(found), found.num_words) == (3, 7)
    assert list(found) == found.sentences


def test_words_are_unicode(tmp_path: Path) -> None:
    path = written(tmp_path, "caf\u00e9 \u4e2d\u6587 \U0001f600\nna\u00efve\n".encode())
    assert read_sentences(path).sentences == [["caf\u00e9", "\u4e2d\u6587", "\U0001f600"], ["na\u00efve"]]


BAD = {
    "empty": (b"", r"the file is empty; at least one sentence"),
    "empty lines": (b"\n \n\t\n", r"3 lines, all of them empty"),
    "nul": (b"a b\nc \0d\n", r"line 2: byte 3 is NUL: a binary file"),
    "utf-16": ("a b".encode("utf-16-le"), r"line 1: byte 2 is NUL.*UTF-16.*iconv"),
    "latin1": (b"a b\n\nc caf\xe9 d\n", r"line 3: byte 6 is 0xe9, in the token b'caf\\xe9': not UTF-8.*iconv"),
    "cut character": (b"a caf\xc3", r"line 1: byte 6 is 0xc3, in the token b'caf\\xc3': not UTF-8"),
    "surrogate": (b"a\n\xed\xa0\x80\n", r"line 2: byte 1 is 0xed"),
    "bom": (b"\xef\xbb\xbfa b\n", r"line 1: starts with a byte order mark.*without BOM"),
    "old line ends": (b"a b\rc d\re f\r", r"line 1: a carriage return inside the line.*tr "),
    "end symbol": (b"a b\n\nc <eos> d\n", r"line 3: token 2 is <eos>.*remove it"),
    "gzip in disguise": (gzip.compress(LINES, mtime=0), r"line 1: gzip data in a file whose name does not end in \.gz"),
}


@pytest.mark.parametrize(("content", "words"), BAD.values(), ids=BAD)
def test_bad_files(content: bytes, words: str, tmp_path: Path) -> None:
    path = written(tmp_path, content)
    with pytest.raises(DataError, match=f"(?s){re.escape(str(path))}.*{words}"):
        read_sentences(path)


@pytest.mark.parametrize(("content", "words"), [BAD[key] for key in ("empty", "nul", "latin1", "end symbol")])
def test_bad_files_in_gzip(content: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"(?s){words}"):
        read_sentences(written(tmp_path, gzip.compress(content, mtime=0), "corpus.txt.gz"))


def test_a_line_that_is_too_long(tmp_path: Path) -> None:
    path = written(tmp_path, b"short\n" + b"ab " * 1_000_000 + b"\nshort\n")
    with pytest.raises(DataError, match=r"(?s)line 2: 3,000,001 bytes long.*1,000,000.*max_line_bytes=3000001"):
        read_sentences(path)
    assert read_sentences(path, max_line_bytes=3_000_001).num_words == 1_000_002


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_the_limit_of_a_line_is_without_its_end(end: bytes, tmp_path: Path) -> None:
    path = written(tmp_path, b"a\n" + b"x" * 10 + end)
    assert read_sentences(path, max_line_bytes=10).sentences == [["a"], ["x" * 10]]
    with pytest.raises(DataError, match=r"line 2: "):
        read_sentences(path, max_line_bytes=9)


@pytest.mark.parametrize("kept", [5, 30, -12, -4])
def test_truncated_gzip(kept: int, tmp_path: Path) -> None:
    whole = gzip.compress(b"some words of a line\n" * 1000, mtime=0)
    path = written(tmp_path, whole[:kept], "corpus.txt.gz")
    with pytest.raises(
        DataError, match=r"(?s)corpus\.txt\.gz, line \d+: the gzip data is damaged or ends early.*again"
    ):
        read_sentences(path)


def test_damaged_gzip(tmp_path: Path) -> None:
    checksum, block = bytearray(gzip.compress(LINES, mtime=0)), bytearray(gzip.compress(LINES, mtime=0))
    checksum[-6] ^= 1
    block[10] = 0xFF  # a kind of block that does not exist
    for content in (checksum, block, b"plain words\n"):
        with pytest.raises(DataError, match="gzip data is damaged"):
            read_sentences(written(tmp_path, bytes(content), "corpus.txt.gz"))


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"(?s)gone\.txt: no such file.*Check the path"):
        read_sentences(tmp_path / "gone.txt")
    with pytest.raises(DataError, match=r"(?s)is a folder, but a text file.*such as train.txt"):
        read_sentences(tmp_path)


@pytest.mark.parametrize(
    "names",
    [
        ("train.txt", "valid.txt.gz", "test.txt"),
        ("ptb.train.txt.gz", "ptb.valid.txt", "ptb.test.txt"),
        ("wiki.train.tokens", "wiki.valid.tokens", "wiki_test.tokens.gz"),
        ("train.txt", "my-valid.txt", "test.tokens"),
    ],
)
def test_splits_of_a_folder(names: tuple[str, str, str], tmp_path: Path) -> None:
    for name in ("constrain.txt", "train.txt.bak", "notes.txt", "train.csv"):
        written(tmp_path, b"not this\n", name)
    for split in ("train", "valid", "test"):
        (tmp_path / f"old.{split}.txt").mkdir()
    for split, name in zip(("train", "valid", "test"), names, strict=True):
        content = f"a {split}\n".encode()
        written(tmp_path, gzip.compress(content, mtime=0) if name.endswith(".gz") else content, name)
    found = read_splits(str(tmp_path))
    assert {split: text.sentences for split, text in found.items()} == {
        split: [["a", split]] for split in ("train", "valid", "test")
    }
    assert [text.path.name for text in found.values()] == list(names)


def test_some_splits(tmp_path: Path) -> None:
    written(tmp_path, b"a\n", "dev.txt")
    assert list(read_splits(tmp_path, ["dev"])) == ["dev"]


@pytest.mark.parametrize(
    "names", [("train.txt", "train.txt.gz"), ("a.train.txt", "b.train.txt"), ("a.train.txt", "train.tokens")]
)
def test_two_candidates(names: tuple[str, str], tmp_path: Path) -> None:
    for name in names:
        written(tmp_path, b"a\n", name)
    with pytest.raises(DataError, match=rf"(?s)2 files could be the split 'train': {', '.join(names)}.*keep one"):
        find_split(tmp_path, "train")


def test_no_candidate_lists_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"(?s)no file for the split 'train'; the folder holds no files.*Expected train\.txt"
    ):
        find_split(tmp_path, "train")
    for i in range(22):
        written(tmp_path, b"a\n", f"file{i:02}.txt")
    with pytest.raises(DataError, match=r"holds file00\.txt, .*file19\.txt and 2 more"):
        find_split(tmp_path, "train")


def test_folders_that_are_none(tmp_path: Path) -> None:
    path = written(tmp_path, b"a\n")
    with pytest.raises(DataError, match=r"corpus\.txt is a file, but a folder"):
        read_splits(path)
    with pytest.raises(DataError, match="is missing, but a folder"):
        read_splits(tmp_path / "gone")


def test_every_split_is_found_before_one_is_read(tmp_path: Path) -> None:
    written(tmp_path, b"\0", "train.txt")
    with pytest.raises(DataError, match="no file for the split 'valid'"):
        read_splits(tmp_path)


@needs_texts
def test_wikitext_2() -> None:
    found = read_splits(FOLDER / "wikitext-2")
    assert [len(text) for text in found.values()] == [23_767, 2_461, 2_891]
    assert [text.num_empty_lines for text in found.values()] == [36_718 - 23_767, 3_760 - 2_461, 4_358 - 2_891]


def test_a_packed_file_of_that_name_is_named(tmp_path: Path) -> None:
    written(tmp_path, gzip.compress(LINES, mtime=0), "corpus.txt.gz")
    with pytest.raises(DataError, match=r"(?s)corpus\.txt: no such file.*Did you mean .*corpus\.txt\.gz"):
        read_sentences(tmp_path / "corpus.txt")
