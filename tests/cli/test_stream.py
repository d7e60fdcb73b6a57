"""Text read piece by piece: the same answers in the same order, in memory that does not grow with the file."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfold.cli import main, stream
from rankfold.data.text import Arriving
from tests.cli.test_grammar_commands import saved
from tests.cli.test_language_models import as_lines, said, save_model

Captured = pytest.CaptureFixture[str]
LINES = ["the cat sat", "", "a dog", "the yak ran away", "  ", "the", "a cat saw the dog", "the dog ran", "a gnu", "a"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text("".join(f"{line}\n" for line in LINES))
    return tmp_path / "text.txt"


@pytest.mark.parametrize("size", [1, 4, 9])
@pytest.mark.parametrize("command", ["score", "tag", "parse"])
def test_pieces_change_nothing(
    command: str, size: int, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    model = saved(tmp_path / "model") if command == "parse" else save_model(tmp_path / "model")
    assert main([command, str(model), str(file)]) == 0
    whole = capsys.readouterr()
    records = as_lines(capsys, command, model, file)
    monkeypatch.setattr(stream, "NUM_WORDS", size)
    assert main([command, str(model), str(file)]) == 0
    pieces = capsys.readouterr()
    assert pieces.err == whole.err
    assert [_fields(line) for line in pieces.out.splitlines()] == [_fields(line) for line in whole.out.splitlines()]
    assert len(whole.out.splitlines()) == len(LINES)
    found = as_lines(capsys, command, model, file)
    for one, other in zip(records, found, strict=True):
        assert {k: _rounded(v) if isinstance(v, float) else v for k, v in one.items()} == other


def _fields(line: str) -> list[object]:
    first, *rest = line.split("\t")
    return [_rounded(float(first)) if re.fullmatch(r"-?\d+\.\d+", first) else first, *rest]


def _rounded(x: float) -> object:
    """Batches of another shape: the last digits of float32, which differ with the processor's matrix products."""
    return pytest.approx(x, rel=1e-6)


@pytest.mark.parametrize("command", ["score", "tag", "parse"])
def test_a_mistake_in_the_last_line_costs_no_work(
    command: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(stream, "NUM_WORDS", 3)
    model = saved(tmp_path / "model") if command == "parse" else save_model(tmp_path / "model")
    file.write_bytes(file.read_bytes() + b"the \xff\n")
    assert main([command, str(model), str(file)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"line {len(LINES) + 1}: byte 5 is 0xff" in captured.err


def test_lines_of_later_pieces_have_their_numbers(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(stream, "NUM_WORDS", 3)
    model = saved(tmp_path / "model")
    assert [record["line"] for record in as_lines(capsys, "parse", model, file)] == list(range(1, 11))
    picture = tmp_path / "tree.svg"
    assert main(["parse", str(model), str(file), "--draw", str(picture), "--line", "7"]) == 0
    assert "line 7" in capsys.readouterr().err
    assert ">saw<" in picture.read_text()
    file.write_text("a cat\n" * 9 + "a (cat\n")
    assert main(["parse", str(model), str(file)]) == 2
    assert "line 10: word 2 is '(cat'" in capsys.readouterr().err


def test_unknown_words_are_counted_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(stream, "NUM_COUNTED", 2)
    (tmp_path / "text.txt").write_text("yak gnu emu yak\nyak auk\n")
    said_before = "counted as <unk>: 6, of them yak (3), gnu (1), and 2 words that came after so many different ones"
    assert main(["score", str(save_model(tmp_path / "model")), str(tmp_path / "text.txt")]) == 0
    assert said_before in capsys.readouterr().err


def test_progress(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    model = save_model(tmp_path / "model")
    assert main(["score", str(model), str(file)]) == 0
    assert "scored" not in capsys.readouterr().err  # it took no time
    monkeypatch.setattr(stream, "NUM_WORDS", 12)
    monkeypatch.setattr(stream, "SECONDS", 0.0)
    assert main(["score", str(model), str(file)]) == 0
    told = re.findall(r"scored (\d+) of 10 lines", capsys.readouterr().err)
    assert list(map(int, told)) == sorted(set(map(int, told)))
    assert told[-1] == "10"
    assert len(told) > 1


def test_standard_input_is_answered_as_it_comes(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model")
    command = [sys.executable, "-m", "rankfold", "score", str(model), "-"]
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=plain, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        for line in (b"the cat sat\n", b"\n", b"a dog\n"):
            process.stdin.write(line)
            process.stdin.flush()
            answer = process.stdout.readline()  # before the input has ended
            assert answer.split(b"\t")[-1] == line
        process.stdin.write(b"the \0 dog\n")
        process.stdin.close()
        assert process.wait() == 2
        assert b"standard input, line 4: byte 5 is NUL" in process.stderr.read()


def test_what_standard_input_held_is_said_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    model = save_model(tmp_path / "model")
    monkeypatch.setattr(stream, "NUM_WORDS", 2)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO("\n".join(LINES).encode())))
    assert main(["tag", str(model)]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == len(LINES)
    assert "standard input: 2 empty lines stay empty" in captured.err
    assert "counted as <unk>: 2, of them gnu (1), yak (1)" in captured.err


class Chunks(io.RawIOBase):
    """A stream that comes in pieces."""

    def __init__(self, chunks: list[bytes]) -> None:
        self.chunks = [chunk for chunk in chunks if chunk]

    def read1(self, _: int) -> bytes:
        return self.chunks.pop(0) if self.chunks else b""


@given(st.lists(st.binary(max_size=6).map(lambda x: x.replace(b"\1", b"\n")), max_size=6), st.integers(1, 9))
def test_lines_that_arrive_are_those_of_a_file(chunks: list[bytes], limit: int) -> None:
    truth, found = io.BytesIO(b"".join(chunks)), Arriving(Chunks(chunks))  # type: ignore[arg-type]
    while line := truth.readline(limit):
        assert found.readline(limit) == line
    assert found.readline(limit) == b""


def test_what_has_no_descriptor_is_never_idle() -> None:
    assert not Arriving(io.BytesIO(b"")).is_idle()
    out, into = os.pipe()
    with open(out, "rb") as stdin, open(into, "wb", buffering=0) as pipe:
        arriving = Arriving(stdin)
        assert arriving.is_idle(0.01)
        pipe.write(b"one\ntwo\nthr")
        assert not arriving.is_idle(0.01)
        assert arriving.readline(99) == b"one\n"
        assert not arriving.is_idle(0.01)
        assert arriving.readline(99) == b"two\n"
        assert arriving.is_idle(0.01)


MEASURE = """
import resource, sys
from rankfold import cli
from rankfold.cli import score
from rankfold.models.strings import Scored
score.score = lambda model, sentences, **_: [Scored(0.0, len(words), 0) for words in sentences]
assert cli.main(["score", sys.argv[1], sys.argv[2]]) == 0
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def peak(model: Path, file: Path, code: str = MEASURE) -> int:
    """The largest memory of scoring a file, in KiB."""
    done = subprocess.run([sys.executable, "-c", code, model, file], capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == file.read_bytes().count(b"\n")
    return int(done.stderr.splitlines()[-1])


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Reading and writing alone: held at once, three megabytes of text take about fifty as words."""
    model = save_model(tmp_path / "model")
    line = "the cat saw a dog away from here and the dog ran to where it had sat\n"
    (tmp_path / "small").write_text(line * 1500)
    (tmp_path / "large").write_text(line * 40_000)
    assert peak(model, tmp_path / "large") - peak(model, tmp_path / "small") < 8 * 1024


@pytest.mark.slow
def test_memory_of_real_scores_does_not_grow(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model")
    line = "the cat saw a dog away from here and the dog ran to where it had sat\n"
    code = re.sub(r"score\.score = .*\n", "", MEASURE)
    (tmp_path / "small").write_text(line * 15_000)
    (tmp_path / "large").write_text(line * 300_000)
    assert peak(model, tmp_path / "large", code) - peak(model, tmp_path / "small", code) < 32 * 1024


def test_gzip_streams_too(file: Path, tmp_path: Path, capsys: Captured) -> None:
    import gzip

    model = save_model(tmp_path / "model")
    packed = tmp_path / "text.txt.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert said(capsys, "score", model, packed) == said(capsys, "score", model, file)
