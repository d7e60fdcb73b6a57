"""The runs of a page in one file: run folders and archives of them put in, taken out and made folders again."""

import gzip
import json
import tarfile
from pathlib import Path

import pytest

from benchmarks.results import archive, language_models, runs
from benchmarks.results.command import main
from rankfold.errors import DataError
from rankfold.models.config import GrammarConfig, ModelConfig
from tests.benchmarks.results.test_grammars_page import PAGE as GRAMMARS_PAGE
from tests.benchmarks.results.test_language_models_page import FINISHED, PAGE, record

NAME = "lhmm-4096-1024-ptb"
RESULTS = Path(archive.__file__).parents[2] / "docs" / "results"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "results"
    made.mkdir()
    (made / language_models.PAGE).write_text(PAGE)
    (made / "grammars.md").write_text(GRAMMARS_PAGE)
    return made


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Folders of runs: finished, cut off, not begun; a grammar not judged, one that is; one of a part of its own."""
    made = tmp_path / "runs"
    judged = record("npcfg-gum-s1", "npcfg-gum", FINISHED, evaluation={"recipe": "npcfg-gum", "data": "gum"})
    for found in (
        record(NAME, NAME, FINISHED, gpu=None),
        record("hmm-4096-ptb", "hmm-4096-ptb", FINISHED[:2]),
        record("hmm-8192-ptb", "hmm-8192-ptb", []),
        record("spcfg-gum-s1", "spcfg-gum", FINISHED),
        judged,
        record(f"ablations-lhmm/{NAME}-base", NAME, FINISHED, sets=["train.seed=3"]),
    ):
        archive.write_run(found, made / found.name)
    return made


def test_finished_runs_of_an_archive_are_added(
    folder: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = tmp_path / "results.tar.gz"
    with tarfile.open(packed, "w:gz") as stream:
        for path in sorted(source.iterdir()):
            stream.add(path, path.name)
    assert main([str(folder), "--no-picture", "--add", str(packed)]) == 0
    said = capsys.readouterr().err
    assert f"{NAME}: added" in said
    assert "hmm-4096-ptb: unfinished, left out" in said
    assert "spcfg-gum-s1: not judged by trees, left out" in said
    assert "hmm-8192-ptb" not in said  # which has not begun
    assert [run.name for run in runs.read_runs(folder)] == [NAME, "npcfg-gum-s1"]
    assert [run.config.train.seed for run in runs.read_runs(folder, "ablations-lhmm")] == [3]
    assert f"| `{NAME}` |" in (folder / language_models.PAGE).read_text()
    assert "| `npcfg-gum-s1` |" in (folder / "grammars.md").read_text()
    assert sorted(path.name for path in folder.iterdir()) == [
        "grammars.jsonl.gz",
        "grammars.md",
        "hmm-language-models.jsonl.gz",
        "hmm-language-models.md",
    ]


def test_folders_are_added_with_what_was_cut_short_and_replaced(
    folder: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(folder), "--no-picture", "--add", str(source), "--unfinished"]
    assert main(given) == 0
    assert "hmm-4096-ptb: added" in capsys.readouterr().err
    path = folder / "hmm-language-models.jsonl.gz"
    before = path.stat().st_mtime_ns
    assert main(given) == 0
    assert "hmm-4096-ptb: replaced" in capsys.readouterr().err
    assert path.stat().st_mtime_ns == before  # the same runs: the file is left alone
    finished = record("hmm-4096-ptb", "hmm-4096-ptb", FINISHED)
    archive.write_run(finished, source.parent / "later" / "hmm-4096-ptb")
    assert main([str(folder), "--no-picture", "--add", str(source.parent / "later")]) == 0
    assert {run.name: run.finished for run in runs.read_runs(folder)}["hmm-4096-ptb"]


def test_a_run_is_taken_out(folder: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder), "--no-picture", "--add", str(source)]) == 0
    assert main([str(folder), "--no-picture", "--remove", NAME]) == 0
    assert [run.name for run in runs.read_runs(folder)] == ["npcfg-gum-s1"]
    assert f"| `{NAME}` |" not in (folder / language_models.PAGE).read_text()
    assert main([str(folder), "--remove", "npcfg-gum-s2"]) == 2
    assert "has no run npcfg-gum-s2.\n  Near it: npcfg-gum-s1" in capsys.readouterr().err


def test_a_run_is_a_folder_again(folder: Path, source: Path, tmp_path: Path) -> None:
    assert main([str(folder), "--no-picture", "--add", str(source)]) == 0
    made = tmp_path / "made"
    for name in ("npcfg-gum-s1", f"ablations-lhmm/{NAME}-base"):
        assert main([str(folder), "--extract", name, str(made / name)]) == 0
        (found,) = (path for path in (made / name).parent.iterdir() if path.name == Path(name).name)
        for path in (source / name).iterdir():
            assert (found / path.name).read_bytes() == path.read_bytes()
    assert main([str(folder), "--extract", "npcfg-gum-s1", str(made)]) == 2  # nothing is written over


def test_what_cannot_be_read_is_named_and_nothing_is_added(
    folder: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(folder), "--no-picture", "--add", str(source)]
    run = source / "npcfg-gum-s1"
    for name, contents in (("evaluation.json", ("{", "[]")), ("environment.json", ("{",))):
        before = (run / name).read_text()
        for content in contents:
            (run / name).write_text(content)
            assert main(given) == 2
            assert f"npcfg-gum-s1/{name}" in capsys.readouterr().err
        (run / name).write_text(before)
    (run / "metrics.jsonl").write_text('{"update": 1}\n{"upd')
    assert main(given) == 2
    assert "line 2 is torn" in capsys.readouterr().err
    (run / "metrics.jsonl").write_text('{"update": 1, "seconds": 1.0, "end": true}\n')
    (folder / "grammars.md").write_text("no marks\n")  # found after the runs are read
    assert main(given) == 2
    assert archive.read_archives(folder) == []
    assert main([str(folder), "--add", str(folder / language_models.PAGE)]) == 2
    assert "is neither a folder of runs nor an archive of one" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"no gzip", gzip.compress(b"{", mtime=0)[:-9], gzip.compress(b"[1]\n", mtime=0)])
def test_a_file_that_is_damaged(folder: Path, content: bytes) -> None:
    (folder / "music.jsonl.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"music.jsonl.gz: cannot be read"):
        archive.read_archives(folder)


def test_a_folder_that_is_not_there(folder: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        archive.read_archives(folder / "nowhere")


def test_our_own_runs_are_whole() -> None:
    """Every run is on the page of its kind, and says what it ran on, and with which settings."""
    for path in RESULTS.glob(f"*{archive.ENDING}"):
        for line in gzip.decompress(path.read_bytes()).splitlines():
            found = archive.Record(**json.loads(line))
            assert f"{found.page}{archive.ENDING}" == path.name
            assert {"cuda_device", "torch", "rankfold", "argv"} <= set(found.environment)
            assert found.metrics[-1]["update"] > 0
            assert isinstance(found.config.model, ModelConfig | GrammarConfig) or found.page == "music"
    assert not [path for path in RESULTS.iterdir() if path.is_dir()]
