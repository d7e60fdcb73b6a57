"""Sentences from docstrings: what is prose, what is not, and files written once."""

import itertools
import os
import time
import warnings
from collections import Counter
from pathlib import Path

import pytest

from rankfold.data.demo import DocstringText, docstring_sentences, read_docstrings, split, write_corpus
from rankfold.data.text import read_splits
from rankfold.errors import DataError, DomainError


@pytest.fixture(scope="module")
def library() -> DocstringText:
    """The standard library of the Python that runs the tests."""
    return read_docstrings()


def sentences(folder: Path, docstring: str) -> list[str]:
    """What a module with this docstring says."""
    (folder / "module.py").write_text(f"{docstring!r}\n", encoding="utf-8")
    return [" ".join(sentence) for sentence in docstring_sentences(folder)]


def test_docstrings_of_modules_classes_and_functions_in_order(tmp_path: Path) -> None:
    (tmp_path / "b.py").write_text(
        '"""This is the module."""\n'
        "class A:\n    '''This is a class.'''\n"
        "    def f(self):\n        '''This is a method.'''\n        'Not this one.'\n"
        "if A:\n    async def g():\n        '''This is a coroutine.'''\n"
        "x = 'This is a string.'\n"
    )
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "z.py").write_text("'This is the first file.'")
    said = [sentence[-2] for sentence in docstring_sentences(tmp_path)]
    assert said == ["file", "module", "class", "method", "coroutine"]


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("Return the number.", ["return the number ."]),
        ("Wait for 30 or 2.5 seconds!", ["wait for N or N seconds !"]),
        ("Call `run()` on *this*, don't 'wait'.", ["call run on this , don't wait ."]),
        ("The first line\n    goes on. The second too.", ["the first line goes on .", "the second too ."]),
        ("A paragraph is one\n\nAnother is another", ["a paragraph is one", "another is another"]),
        ("It is short, e.g. a word, etc. and so on.", ["it is short , eg a word , etc and so on ."]),
        ("It is long, etc. The end is near.", ["it is long , etc .", "the end is near ."]),
        ("Use it with --help only.", []),
        ("See the os.path module.", ["see the os.path module ."]),
        ("Two words.", []),  # too short with its full stop, and none of them common
        ("the start is missing.", []),
        ("A list of a_b, c.d, E2 and fG.", []),  # mostly names of code
        ("If a == b, it is true.", []),
        ("Call f(x) with the value.", []),
        ("Open the file /etc/hosts.", []),
        ("It is na\u00efve to do so.", []),
        ("This is one (half of it.", []),
        ("It ends with the", []),
        ("Example:\n\n>>> print('This is it.')\nThis is it.\n\nThis is after it.", ["this is after it ."]),
        ("The name    of it\nThe other    one.", []),  # two columns
        ("The value is\n==========\nA heading is above.", ["a heading is above ."]),
        ("name -- The name of it.\nsize: The size of it.", ["the name of it .", "the size of it ."]),
        ("- The first one is here.\n- The second is here.", ["the first one is here .", "the second is here ."]),
        ("The " + "word " * 58 + ".", ["the " + "word " * 58 + "."]),
        ("The " + "word " * 59 + ".", []),
    ],
)
def test_what_is_a_sentence(tmp_path: Path, docstring: str, expected: list[str]) -> None:
    assert sentences(tmp_path, docstring) == expected


def test_left_out_and_skipped(tmp_path: Path) -> None:
    for name in ("site-packages", "tests", "lib2to3", "idlelib/idle_test"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "a.py").write_text("'This is left out.'")
    (tmp_path / "good.py").write_text("'This is it.'\ndef f():\n    'This is it.'\n")
    (tmp_path / "broken.py").write_text("'This is it.'\ndef (:\n")
    (tmp_path / "nul.py").write_bytes(b"'This is it.'\0")
    (tmp_path / "latin.py").write_bytes(b"'This is \xe9.'")
    text = read_docstrings(tmp_path)
    assert text.sentences == [["this", "is", "it", "."]]
    assert text.num_files == 1
    assert [path.name for path in text.skipped] == ["broken.py", "latin.py", "nul.py"]
    with pytest.raises(DataError, match="no Python files"):
        read_docstrings(tmp_path / "tests" / "nothing")


def test_split_keeps_modules_whole() -> None:
    modules = {f"module{i}": [[str(i), "has", "line", str(j)] for j in range(i % 7 + 1)] for i in range(300)}
    modules["large"] = [["large", str(j)] for j in range(200)]
    parts = split(modules)
    assert list(parts) == ["train", "valid", "test"]
    everything = list(itertools.chain.from_iterable(modules.values()))
    assert sorted(itertools.chain.from_iterable(parts.values())) == sorted(everything)
    owners = {name: {sentence[0] for sentence in sentences} for name, sentences in parts.items()}
    assert not owners["train"] & owners["valid"]
    assert not (owners["train"] | owners["valid"]) & owners["test"]
    assert "large" in owners["train"]  # more than a quarter of a share
    for name in ("valid", "test"):
        assert 0.055 < len(parts[name]) / len(everything) <= 0.06
    assert split(dict(reversed(modules.items()))) == parts
    assert split(modules, valid=0, test=0)["train"] == [x for name in sorted(modules) for x in modules[name]]
    with pytest.raises(DomainError, match="below 1 together"):
        split(modules, valid=0.5, test=0.5)


def test_a_sentence_of_two_modules_stands_in_one(tmp_path: Path) -> None:
    (tmp_path / "b.py").write_text("def f():\n    'This is it.'\ndef g():\n    'That is it.'\n")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "z.py").write_text("'This is it.'")
    assert read_docstrings(tmp_path).modules == {"a": [["this", "is", "it", "."]], "b": [["that", "is", "it", "."]]}


def test_splits_of_the_library_share_no_sentence(library: DocstringText) -> None:
    parts = {name: set(map(tuple, sentences)) for name, sentences in split(library.modules).items()}
    assert not parts["train"] & parts["valid"]
    assert not (parts["train"] | parts["valid"]) & parts["test"]
    assert min(map(len, parts.values())) > 400


def test_corpus_is_written_once(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for i in range(50):
        (source / f"m{i}.py").write_text(f"def f():\n    'This is the {'very ' * i}same.'\n")
    paths = write_corpus(tmp_path / "out" / "corpus", source=source)
    assert [path.name for path in paths.values()] == ["train.txt", "valid.txt", "test.txt"]
    assert {name: read.sentences for name, read in read_splits(tmp_path / "out" / "corpus").items()} == split(
        read_docstrings(source).modules
    )
    assert all(path.read_text() for path in paths.values())
    for path in paths.values():
        os.utime(path, (1, 1))
    write_corpus(tmp_path / "out" / "corpus", source=source)  # safe to repeat
    assert [path.stat().st_mtime for path in paths.values()] == [1, 1, 1]
    assert len(list((tmp_path / "out" / "corpus").iterdir())) == 3


@pytest.mark.parametrize("name", ["train.txt", "valid.txt", "test.txt"])
def test_a_text_of_the_user_is_never_written_over(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f():\n    'This is the same.'\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name).write_text("my only copy\n")
    with pytest.raises(DataError, match=rf"{name} exists.*left as it is.*\n.*another folder"):
        write_corpus(tmp_path / "mine", source=tmp_path)
    assert {path.name: path.read_text() for path in (tmp_path / "mine").iterdir()} == {name: "my only copy\n"}


def test_a_dangling_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f():\n    'This is the same.'\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "train.txt").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=r"train\.txt exists"):
        write_corpus(tmp_path / "out", source=tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_the_standard_library_reads_like_english(library: DocstringText) -> None:
    counts = Counter(word for sentence in library.sentences for word in sentence)
    assert len(library.sentences) > 10_000
    assert library.num_files > 400
    assert len(library.skipped) < 5
    assert {"the", "a", "to", "of"} < {word for word, _ in counts.most_common(12)}
    assert all(3 <= len(sentence) <= 60 for sentence in library.sentences)
    assert len(set(map(tuple, library.sentences))) == len(library.sentences)
    assert sum(sentence[-1] == "." for sentence in library.sentences) > 0.85 * len(library.sentences)


def test_reading_twice_gives_the_same_and_takes_seconds(library: DocstringText) -> None:
    start = time.process_time()
    assert read_docstrings() == library
    assert time.process_time() - start < 20  # 3 s on two busy cores of 2026


def test_what_is_no_python_is_passed_over_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("'It returns the sum of the numbers.'\nx = '\\d' is 1\n")
    (tmp_path / "b.py").write_text("-" * 200_000 + "1")
    (tmp_path / "c.py").symlink_to("nowhere")
    os.mkfifo(tmp_path / "d.py")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = read_docstrings(tmp_path)
    assert len(found.sentences) == 1
    assert [path.name for path in found.skipped] == ["b.py", "c.py", "d.py"]
