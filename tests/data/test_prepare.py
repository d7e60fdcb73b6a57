"""Prepared texts: nothing lost, splits by seed and without overlap, and whatever is no text refused before work."""

import gzip
import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankfold.data import prepare as preparing
from rankfold.data.prepare import Placement, Prepared, prepare, read_prepared
from rankfold.data.raw_text import Reader, find_layout
from rankfold.data.text import read_splits
from rankfold.data.tokenize import SPACE, Tokenizer
from rankfold.errors import DataError, DomainError

STORY = "The {0} cat sat on mat {0}. It was {0} o'clock, said Mr. {0}! Was it?\nYes, \u201cit was\u201d {0} ...\n\n"
WHITE = st.text(st.characters(codec="utf-8") | st.sampled_from("aB.!? \n\n\r\t\u3002\u4e2d\u0301\u00a0"), min_size=1)


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8", newline="")
    return str(path)


def story(num: int = 40) -> str:
    return "".join(STORY.format(i) for i in range(num))


def lines_of(folder: Path) -> dict[str, list[str]]:
    return {name: (folder / f"{name}.txt").read_text().splitlines() for name in ("train", "valid", "test")}


@given(text=WHITE, layout=st.sampled_from(["wrapped", "paragraphs", "lines", None]))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_every_character_stands_once_and_in_order(text: str, layout: Any, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(text.replace("\0", "").removeprefix("\ufeff").encode() or b"a")
    reader = Reader([str(path)], lambda chunk: " ".join(Tokenizer("simple").tokenize(chunk)), layout)
    pieces = list(reader)
    tokens = [token for piece in pieces for sentence in piece.sentences for token in sentence.split(" ")]
    read = path.read_bytes().decode()
    assert "".join(tokens) == "".join(read.split())
    assert all(tokens)
    assert all(sentence for piece in pieces for sentence in piece.sentences)
    assert reader.counts.lines == len(read.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n"))
    assert sum(piece.new for piece in pieces) == reader.counts.documents
    assert sum(piece.new_file for piece in pieces) == bool(pieces)


@pytest.mark.parametrize("block", [1, 7, 64])
def test_blocks_leave_no_trace(block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = story(30) + "x y \r\nz\r\n \t\r\n\u4e2d\u3002\u4e2d"
    path = write(tmp_path / "text.txt", text)
    whole = list(Reader([path], str, "wrapped"))
    monkeypatch.setattr("rankfold.data.raw_text.BLOCK", block)
    monkeypatch.setattr("rankfold.data.raw_text.HEAD", 400)
    assert [p.sentences for p in Reader([path], str, "wrapped")] == [p.sentences for p in whole]


def test_long_documents_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "text.txt", story(50).replace("\n\n", "\n") + "\nlast words")
    whole = [s for piece in Reader([path], str, "wrapped") for s in piece.sentences]
    monkeypatch.setattr("rankfold.data.raw_text.BLOCK", 64)
    monkeypatch.setattr("rankfold.data.raw_text.HEAD", 200)
    reader = Reader([path], str, "wrapped")
    pieces = list(reader)
    assert [s for piece in pieces for s in piece.sentences] == whole
    assert len(pieces) > 5
    assert [piece.new for piece in pieces] == [True] + [False] * (len(pieces) - 2) + [True]
    assert (reader.counts.documents, reader.counts.empty_lines) == (2, 1)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("He left. She stayed.", ["He left.", "She stayed."]),
        ("Mr. J. Smith of the U.S. left (at 3.15). \u201cWhy?\u201d she said.",
         ["Mr. J. Smith of the U.S. left (at 3.15).", "\u201cWhy?\u201d she said."]),
        ("It ended . . . or so. etc. and so on!", ["It ended . . . or so. etc. and so on!"]),
        ("\u05e9\u05dc. \u05e2\u05d5.", ["\u05e9\u05dc.", "\u05e2\u05d5."]),
        ("\u4e2d\u6587\u3002\u597d\uff01Ok", ["\u4e2d\u6587\u3002", "\u597d\uff01", "Ok"]),
        ("No end at all", ["No end at all"]),
    ],
)  # fmt: skip
def test_sentences(text: str, sentences: list[str], tmp_path: Path) -> None:
    path = write(tmp_path / "text.txt", text + "\n")
    assert [s for piece in Reader([path], str, "wrapped") for s in piece.sentences] == sentences


def test_layouts() -> None:
    def wrap(end: str) -> list[str]:
        words = [f"word{'x' * (i * 7 % 5)} " * 3 + end for i in range(200)]
        wrapped, line = [], ""
        for word in " ".join(words).split():
            if len(line) + len(word) > 60:
                wrapped.append(line)
                line = ""
            line += word + " "
        return wrapped

    assert find_layout(wrap("End.")) == "wrapped"
    assert find_layout(wrap("end")) == "lines"  # where no sentence ends, the lines are all there is
    assert find_layout([f"One sentence here {i}. Another one {'there ' * i}." for i in range(30)]) == "paragraphs"
    assert find_layout([f"a sentence {'of words ' * (i % 9)}with mr. smith ." for i in range(90)]) == "lines"
    assert find_layout(["", ""]) == "lines"


def test_the_folder_is_what_train_reads(tmp_path: Path) -> None:
    path, out = write(tmp_path / "book.txt", "\ufeff" + story()), tmp_path / "new" / "out"
    found = prepare([path], out, layout="wrapped")
    read = read_splits(out)
    assert {name: len(split) for name, split in read.items()} == found.sentences
    assert {name: split.num_words for name, split in read.items()} == found.tokens
    assert sorted(f.name for f in out.iterdir()) == sorted(
        ["train.txt", "valid.txt", "test.txt", "tokenizer.json", "prepared.json"]
    )
    assert found.sentences == {"train": 4 * 36, "valid": 8, "test": 8}
    everything = [words for split in read.values() for words in split]
    assert found.types == len({word for words in everything for word in words})
    assert found.counts == {
        "files": 1, "bytes": len(story().encode()), "lines": 120, "empty_lines": 40, "documents": 40,
        "byte_order_marks": 1,
    }  # fmt: skip
    assert found.repeated == {"valid": 2, "test": 2}  # "Was it ?"
    content = read_prepared(out)
    assert content is not None
    assert (content["split_by"], content["layout"], content["seed"]) == ("document", "wrapped", 1)
    assert Tokenizer.load(out) == Tokenizer("simple")
    assert read.keys() == {"train", "valid", "test"}
    assert (out.stat().st_mode & 0o777) == 0o777 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_splits_repeat_by_seed_and_share_no_document(tmp_path: Path) -> None:
    text = "".join(f"one{i} two{i}.\nThree{i}.\n\n" for i in range(200))
    path = write(tmp_path / "book.txt", text)
    results = [prepare([path], tmp_path / f"{n}", seed=seed, layout="lines") for n, seed in enumerate((1, 1, 2))]
    folders = [lines_of(tmp_path / f"{n}") for n in range(3)]
    assert results[0].sha256 == results[2].sha256
    assert folders[0] == folders[1] != folders[2]
    for folder in folders:
        documents = {name: {re.findall(r"\d+", line)[0] for line in lines} for name, lines in folder.items()}
        assert not documents["train"] & documents["valid"]
        assert not documents["train"] & documents["test"]
        assert not documents["valid"] & documents["test"]
        assert {name: len(found) for name, found in documents.items()} == {"train": 180, "valid": 10, "test": 10}
        assert sorted(line for lines in folder.values() for line in lines) == sorted(
            " ".join(Tokenizer("simple").tokenize(line)) for line in text.splitlines() if line
        )


@given(st.integers(0, 2**70), st.integers(2, 30), st.integers(1, 200))
def test_every_stretch_has_one_of_each(seed: int, size: int, num: int) -> None:
    place = Placement(seed, size)
    drawn = [place(0) for _ in range(num * size)]
    for i in range(num):
        stretch = drawn[i * size : (i + 1) * size]
        assert (stretch.count("valid"), stretch.count("test")) == (1, 1)


def test_held_out_splits_grow_slowly() -> None:
    place, size = Placement(1, 20), 10_000
    drawn = [place(i * size) for i in range(20_000)]  # 200 MB
    assert 130 <= drawn.count("valid") <= 200
    assert drawn[:1000].count("valid") == 50


def test_by_file_and_by_line(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{i}.txt", f"a{i} b.\n\nc{i}.\n") for i in range(20)]
    by_file = prepare(paths, tmp_path / "files", layout="lines")
    assert (by_file.split_by, by_file.sentences) == ("file", {"train": 36, "valid": 2, "test": 2})
    few = prepare(paths[:3], tmp_path / "few", layout="lines", split_by="file")
    assert few.sentences == {"train": 2, "valid": 2, "test": 2}
    by_line = prepare(paths[:3], tmp_path / "lines", layout="lines")
    assert (by_line.split_by, by_line.sentences) == ("line", {"train": 4, "valid": 1, "test": 1})
    assert len(lines_of(tmp_path / "lines")["train"]) == 4


def test_gzip_standard_input_and_plain_are_the_same(tmp_path: Path) -> None:
    path = write(tmp_path / "book.txt", story())
    (tmp_path / "book.txt.gz").write_bytes(gzip.compress(story().encode()))
    plain, packed = prepare([path], tmp_path / "a"), prepare([f"{path}.gz"], tmp_path / "b")
    code = f"from rankfold.data.prepare import prepare; prepare(['-'], {str(tmp_path / 'c')!r})"
    subprocess.run([sys.executable, "-c", code], input=story().encode(), check=True)
    assert lines_of(tmp_path / "a") == lines_of(tmp_path / "b") == lines_of(tmp_path / "c")
    assert plain.sha256 == packed.sha256 == (read_prepared(tmp_path / "c") or {})["sha256"]


def test_characters_and_spaces(tmp_path: Path) -> None:
    path = write(tmp_path / "book.txt", story())
    prepare([path], tmp_path / "c", tokenizer="characters", layout="wrapped")
    prepare([path], tmp_path / "s", tokenizer="spaces", layout="wrapped")
    characters, spaces = lines_of(tmp_path / "c"), lines_of(tmp_path / "s")
    for name, lines in spaces.items():
        assert [Tokenizer("characters").detokenize(line.split(" ")) for line in characters[name]] == lines
    assert SPACE in characters["train"][0]


def test_subwords_are_trained_on_the_training_text(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    path = write(tmp_path / "book.txt", story())
    found = prepare([path], tmp_path / "w", tokenizer="subwords", num_types=90, layout="wrapped")
    prepare([path], tmp_path / "s", tokenizer="spaces", layout="wrapped")
    tokenizer = Tokenizer.load(tmp_path / "w")
    assert found.types <= 90
    for name, lines in lines_of(tmp_path / "s").items():
        assert [" ".join(tokenizer.tokenize(line)) for line in lines] == lines_of(tmp_path / "w")[name]
    assert not list((tmp_path / "w").glob("*.raw"))


def test_a_long_sentence_is_cut_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "book.txt", "a " * 2500 + "\nb\nc\n")
    found = prepare([path], tmp_path / "out", layout="lines")
    assert (found.cut_sentences, sum(found.sentences.values()), sum(found.tokens.values())) == (1, 5, 2502)
    assert "1 sentence of more than 1,000 tokens" in found.lines()[-1]


def bad(kind: str, folder: Path) -> list[str]:
    """Names of files that are no text."""
    path = folder / "bad.txt"
    if kind == "missing":
        return [str(path)]
    if kind == "folder":
        return [str(folder)]
    if kind == "pipe":
        os.mkfifo(path)
        return [str(path)]
    content = {
        "empty": b"",
        "white": b" \n\t\n\n",
        "binary": b"one line\n\x7fELF\0\0\1",
        "latin": b"one line\nthe caf\xe9 is\n",
        "late": b"a line of text\n" * 200_000 + b"caf\xe9\n",
        "packed": gzip.compress(b"a text"),
        "one sentence": b"only one sentence here.\n",
        "two": b"one.\ntwo.\n",
        "endless": b"x " * 600_000,
    }
    if kind == "torn":
        path = folder / "bad.txt.gz"
        content["torn"] = gzip.compress(b"a text\n" * 9999)[:-20]
    path.write_bytes(content[kind])
    return [str(path)]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("missing", "no such file"),
        ("folder", "is a folder"),
        ("pipe", "is a pipe"),
        ("empty", "the file is empty"),
        ("white", "nothing but white space"),
        ("binary", r"line 2: byte 14 of the file is NUL: a binary"),
        ("latin", r"line 2: byte 17 of the file is 0xe9, in .*not UTF-8"),
        ("late", r"line 200001: byte 3,000,004 of the file is 0xe9"),
        ("packed", "does not end in .gz"),
        ("torn", "damaged or ends early"),
        ("one sentence", "1 sentence, but train, valid and test need"),
        ("two", "2 sentences, but train"),
        ("endless", "more than 1,000,000 bytes without a line end"),
    ],
)
def test_what_is_no_text_is_refused(kind: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(DataError, match=words):
        prepare(bad(kind, tmp_path / "in"), tmp_path / "out")
    assert os.listdir(tmp_path) == ["in"]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    path, out = write(tmp_path / "book.txt", story()), tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("x")
    with pytest.raises(DataError, match="exists"):
        prepare([path], out)
    assert os.listdir(out) == ["mine"]
    (out / "mine").unlink()
    prepare([path], out)
    with pytest.raises(DataError, match="exists and is not an empty folder"):
        prepare([path], out)
    with pytest.raises(DataError, match="exists"):
        prepare([path], path)


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"seed": -1}, "seed is -1"), ({"split_by": "file"}, "three are needed"), ({"tokenizer": "x"}, "one of spaces")],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises((DataError, DomainError), match=words):
        prepare([write(tmp_path / "book.txt", story())], tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


def test_a_file_given_twice_and_the_end_as_a_word(tmp_path: Path) -> None:
    path = write(tmp_path / "book.txt", "a <eos> b\n" * 30)
    with pytest.raises(DataError, match="given twice"):
        prepare([path, path], tmp_path / "out")
    with pytest.raises(DataError, match=r"<eos> is a word of the text"):
        prepare([path], tmp_path / "out", tokenizer="spaces")
    prepare([path], tmp_path / "out")
    assert lines_of(tmp_path / "out")["train"][0] == "a < eos > b"


def test_many_types_and_markup_are_words_like_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "book.txt", "".join(f"w{i} <script>\n" for i in range(5000)))
    found = prepare([path], tmp_path / "out")
    assert (found.types, found.all_types) == (5003, True)
    monkeypatch.setattr(preparing, "MOST_TYPES", 1000)
    found = prepare([path], tmp_path / "few")
    assert not found.all_types
    assert f"more than {found.types:,} types" in found.lines()[2]


def test_a_broken_prepared_json_is_refused(tmp_path: Path) -> None:
    assert read_prepared(tmp_path) is None
    (tmp_path / "prepared.json").write_text(json.dumps({"format": "x"}))
    with pytest.raises(DataError, match="not a prepared text"):
        read_prepared(tmp_path)


@pytest.mark.slow
def test_200_megabytes_at_20_a_second_in_little_memory(tmp_path: Path) -> None:
    """By hand: pytest -m slow -k 200_megabytes -s. CPU time of one core, and the peak of the process."""
    paragraph = story(400).replace("\n\n", "\n") + "\n"
    path = tmp_path / "big.txt"
    with path.open("w") as stream:
        for i in range(200_000_000 // len(paragraph.encode()) + 1):
            stream.write(paragraph.replace("cat", f"cat{i}"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    found: Prepared = prepare([str(path)], tmp_path / "out")
    rate = path.stat().st_size / 1e6 / (time.process_time() - started)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3
    print(f"{rate:.1f} MB/s, {grown:.0f} MB more memory, {sum(found.tokens.values()):,} tokens")
    assert rate >= 20
    assert grown < 150


def test_lines_without_full_stops_are_split_by_line(tmp_path: Path) -> None:
    """Lines as wide as each other look wrapped; as one sentence they could not be split."""
    lines = "".join(f"word{i % 10} other{i % 10} third{i % 10} fourth{i % 10} fifth{i % 10}\n" for i in range(400))
    found = prepare([str(write(tmp_path / "text.txt", lines))], tmp_path / "out")
    assert found.layout == "lines"
    assert sum(found.sentences.values()) == 400
    assert all(found.sentences.values())
