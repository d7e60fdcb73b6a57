"""Engines and folders of results: the bytes of the plain command, files that are whole, and what bad input is told.

Most tests pass everything through pickle in one process, as engines do between several; one starts real ones.
"""

from __future__ import annotations

import io
import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rankfold.cli import main, stream
from rankfold.corpora import processes
from rankfold.corpora.engines import Engine, Failed, Opener, attempt
from rankfold.corpora.results import ResultFile
from rankfold.models import build_model
from rankfold.models.config import FrameConfig
from tests.cli.test_grammar_commands import saved
from tests.cli.test_language_models import save_model

Captured = pytest.CaptureFixture[str]
LINES = ["the cat sat", "", "a dog", "the yak ran away", "  ", "the", "a cat saw the dog", "the dog ran", "a gnu", "a"]


@pytest.fixture
def pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine "processes" in this one: all that would go through a pipe is pickled."""

    def run_processes(engine: Engine, opener: Opener, pieces: Iterator[Any]) -> Iterator[Any]:
        worker = pickle.loads(pickle.dumps(opener))()
        for piece in pieces:
            if isinstance(piece, Failed):
                yield piece
                return
            yield pickle.loads(pickle.dumps(attempt(worker, pickle.loads(pickle.dumps(piece)))))

    monkeypatch.setattr(processes, "run_processes", run_processes)
    monkeypatch.setattr(stream, "NUM_WORDS", 6)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("".join(f"{line}\n" for line in LINES))
    (folder / "b.txt").write_text("the dog\na cat\n")
    (folder / "notes.md").write_text("no text\n")
    return folder


def model_for(command: str, folder: Path) -> Path:
    return saved(folder) if command == "parse" else save_model(folder)


def printed(capsys: Captured, *arguments: object) -> str:
    capsys.readouterr()
    assert main([str(x) for x in arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: Captured, *arguments: object) -> str:
    capsys.readouterr()
    assert main([str(x) for x in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


QUESTIONS = [
    ("score",),
    ("score", "--json"),
    ("score", "--no-eos", "--ids"),
    ("tag",),
    ("tag", "--k", "2", "--json"),
    ("parse", "--labels"),
    ("parse", "--json", "--ids"),
    ("parse", "--k", "2"),
    ("parse", "--pretty"),
]


@pytest.mark.usefixtures("pickled")
@pytest.mark.parametrize("question", QUESTIONS, ids=" ".join)
def test_the_bytes_of_the_plain_command(
    question: tuple[str, ...], texts: Path, tmp_path: Path, capsys: Captured
) -> None:
    command, *options = question
    model, out = model_for(command, tmp_path / "model"), tmp_path / "out"
    plain = {name: printed(capsys, command, model, texts / name, *options) for name in ("a.txt", "b.txt")}
    assert plain["a.txt"].count("\n") >= 6
    engine = ("--engine", "processes", "--workers", 2)
    assert printed(capsys, command, model, texts / "a.txt", *options, *engine) == plain["a.txt"]
    suffix = "jsonl" if "--json" in options else "txt"
    for chosen in ((), engine):
        into = out / str(len(chosen))
        assert printed(capsys, command, model, texts, *options, *chosen, "--out", into) == ""
        for name, expected in plain.items():
            assert (into / f"{name}.{command}.{suffix}").read_bytes() == expected.encode()


def test_two_real_processes(texts: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "NUM_WORDS", 3)
    model = save_model(tmp_path / "model")
    plain = printed(capsys, "score", model, texts / "a.txt", "--json", "--threads", 1)
    engine = ("--engine", "processes", "--workers", 2, "--threads", 1)
    assert printed(capsys, "score", model, texts / "a.txt", "--json", *engine) == plain


def test_finished_files_are_skipped(texts: Path, tmp_path: Path, capsys: Captured) -> None:
    model, out = save_model(tmp_path / "model"), tmp_path / "out"
    printed(capsys, "score", model, texts, "--out", out)
    first = (out / "a.txt.score.txt").stat()
    (texts / "b.txt").write_text("a dog\nthe cat\n")
    (texts / "c.txt").write_text("the\n")
    assert main(["score", str(model), str(texts), "--out", str(out)]) == 0
    told = capsys.readouterr().err
    assert "1 file finished already, 2 to do" in told
    assert "1 other file passed over" in told
    assert "scored 3 lines of 2 files" in told
    assert (out / "a.txt.score.txt").stat().st_mtime_ns == first.st_mtime_ns
    assert (out / "b.txt.score.txt").read_text() == printed(capsys, "score", model, texts / "b.txt")
    assert main(["score", str(model), str(texts), "--out", str(out)]) == 0
    assert "scored 0 lines of 0 files" in capsys.readouterr().err


@pytest.mark.parametrize("engine", [(), ("--engine", "processes")], ids=["here", "processes"])
@pytest.mark.usefixtures("pickled")
def test_a_mistake_leaves_whole_files_alone(
    engine: tuple[str, ...], texts: Path, tmp_path: Path, capsys: Captured
) -> None:
    """Files before the mistake are kept; of its own nothing is, and the next run goes on there."""
    model, out = save_model(tmp_path / "model"), tmp_path / "out"
    (texts / "b.txt").write_bytes(b"the dog\n" * 9 + b"a \xff\n")
    assert "b.txt, line 10: byte 3 is 0xff" in refused(capsys, "score", model, texts, "--out", out, *engine)
    assert sorted(path.name for path in out.iterdir()) == ["a.txt.score.txt", "done.jsonl", "job.json", "lock"]
    (texts / "b.txt").write_bytes(b"the dog\n")
    assert main(["score", str(model), str(texts), "--out", str(out), *engine]) == 0
    assert "1 file finished already, 1 to do" in capsys.readouterr().err
    assert (out / "b.txt.score.txt").exists()


def test_folders_of_another_model_or_question(texts: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "out"
    printed(capsys, "score", save_model(tmp_path / "model"), texts, "--out", out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    other = save_model(tmp_path / "other", spread=1.0)
    assert "another job: model is" in refused(capsys, "score", other, texts, "--out", out)
    assert "another job: options" in refused(capsys, "score", tmp_path / "model", texts, "--json", "--out", out)
    assert "another job: command" in refused(capsys, "tag", tmp_path / "model", texts, "--out", out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_bad_options(texts: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    model, text = save_model(tmp_path / "model"), texts / "a.txt"
    for workers in ("0", "-1", "two"):
        with pytest.raises(SystemExit) as stop:
            main(["score", str(model), str(text), "--engine", "processes", f"--workers={workers}"])
        assert stop.value.code == 2
        assert "no whole number of at least 1" in capsys.readouterr().err
    assert "Add --engine processes" in refused(capsys, "score", model, text, "--workers", 2)
    assert "--out FOLDER" in refused(capsys, "score", model, texts)
    assert "folder of the input" in refused(capsys, "score", model, texts, "--out", texts)
    assert "is a file" in refused(capsys, "score", model, text, "--out", text)
    assert "has no columns" in refused(capsys, "score", model, text, "--column", "text")
    assert "has no columns" in refused(capsys, "score", model, text, "--ids", "name")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"the cat\n")))
    assert "is standard input" in refused(capsys, "score", model, "-", "--out", tmp_path / "out")
    grammar = saved(tmp_path / "grammar")
    draw = ("--draw", tmp_path / "tree.svg", "--out", tmp_path / "out")
    assert "--draw goes without --out" in refused(capsys, "parse", grammar, text, *draw)
    assert "goes without --pretty" in refused(capsys, "parse", grammar, text, "--ids", "--pretty")
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "rankfold[ray]" in refused(capsys, "score", model, text, "--engine", "ray")
    assert not (tmp_path / "out").exists()
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no files in .txt" in refused(capsys, "score", model, empty, "--out", tmp_path / "out")


def test_ids_of_lines(texts: Path, tmp_path: Path, capsys: Captured) -> None:
    model = save_model(tmp_path / "model")
    lines = printed(capsys, "tag", model, texts / "a.txt", "--ids").splitlines()
    assert [line.split("\t")[0] for line in lines] == [str(number) for number in range(1, 11)]
    records = [
        json.loads(line)
        for line in printed(capsys, "score", model, texts / "a.txt", "--json", "--ids").split("\n")[:-1]
    ]
    assert [(record["id"], record["line"]) for record in records] == [(str(i), x) for i, x in enumerate(LINES, 1)]


def test_a_table_of_sentences(tmp_path: Path, texts: Path, capsys: Captured) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet files are read by pyarrow (extra arrow)")
    from pyarrow import parquet

    model = save_model(tmp_path / "model")
    names = [f"s{number}" for number in range(len(LINES))]
    table = pyarrow.table({"text": [line or None for line in LINES], "name": names, "size": list(range(len(LINES)))})
    parquet.write_table(table, tmp_path / "table.parquet", row_group_size=3)
    plain = printed(capsys, "score", model, texts / "a.txt")
    assert printed(capsys, "score", model, tmp_path / "table.parquet") == plain
    named = printed(capsys, "score", model, tmp_path / "table.parquet", "--ids", "name").splitlines()
    assert named == [f"{name}\t{line}" for name, line in zip(names, plain.splitlines(), strict=True)]
    assert "no column 'words'" in refused(capsys, "score", model, tmp_path / "table.parquet", "--column", "words")
    assert "holds int64, no text" in refused(capsys, "score", model, tmp_path / "table.parquet", "--column", "size")
    parquet.write_table(pyarrow.table({"text": ["the cat", "a\ndog"]}), tmp_path / "broken.parquet")
    assert "row 2: a line break" in refused(capsys, "score", model, tmp_path / "broken.parquet")


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    folder = tmp_path / "recordings"
    folder.mkdir()
    np.savez(folder / "a.npz", one=generator.normal(size=(9, 2)), two=generator.normal(size=(5, 2)))
    np.save(folder / "b.npy", generator.normal(size=(7, 2)))
    return folder


@pytest.fixture
def walks(tmp_path: Path) -> Path:
    config = FrameConfig(family="hsmm", num_states=3, num_features=2, max_duration=4, observations="gaussian")
    build_model(config, 2, seed=0).save_pretrained(tmp_path / "walks")
    return tmp_path / "walks"


@pytest.mark.usefixtures("pickled")
@pytest.mark.parametrize("options", [(), ("--json",), ("--csv",)], ids=" ".join)
def test_segments(options: tuple[str, ...], walks: Path, recordings: Path, tmp_path: Path, capsys: Captured) -> None:
    out, engine = tmp_path / "out", ("--engine", "processes")
    whole = printed(capsys, "segment", walks, recordings, *options)
    assert printed(capsys, "segment", walks, recordings, *options, *engine) == whole
    printed(capsys, "segment", walks, recordings, *options, *engine, "--out", out)
    suffix = options[0].removeprefix("--") if options else "txt"
    for name in ("a.npz", "b.npy"):
        expected = printed(capsys, "segment", walks, recordings / name, *options)
        assert (out / f"{name}.segment.{suffix}").read_text() == expected
    assert main(["segment", str(walks), str(recordings), *options, "--out", str(out)]) == 0
    assert "2 files finished already, 0 to do" in capsys.readouterr().err


def test_pieces_of_recordings(walks: Path, recordings: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = json.loads(printed(capsys, "segment", walks, recordings, "--json"))
    monkeypatch.setattr("rankfold.cli.segment.ENTRIES", 3 * 9)  # a piece for each
    parted = json.loads(printed(capsys, "segment", walks, recordings, "--json"))
    for one, other in zip(whole, parted, strict=True):  # other batches: the last digits
        assert other == {k: pytest.approx(v, rel=1e-5) if isinstance(v, float) else v for k, v in one.items()}


def test_a_killed_command_goes_on(
    texts: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a process leaves that is killed before the second result is whole: the first, and a part."""
    model, out = save_model(tmp_path / "model"), tmp_path / "out"
    finish = ResultFile.finish

    def killed(self: ResultFile) -> None:
        if self.name.startswith("b"):
            raise KeyboardInterrupt
        finish(self)

    with monkeypatch.context() as patch:
        patch.setattr(ResultFile, "finish", killed)
        patch.setattr(ResultFile, "drop", lambda self: self.stream.close())
        assert main(["score", str(model), str(texts), "--out", str(out)]) == 130
    assert (out / "a.txt.score.txt").exists()
    assert [path.name for path in out.glob("b.*")] == ["b.txt.score.txt.part"]
    capsys.readouterr()
    assert main(["score", str(model), str(texts), "--out", str(out)]) == 0
    assert "1 file finished already, 1 to do" in capsys.readouterr().err
    assert not list(out.glob("*.part"))
    assert (out / "b.txt.score.txt").read_text() == printed(capsys, "score", model, texts / "b.txt")
