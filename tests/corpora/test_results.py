"""A folder of results: whole files alone, of one job, trusted only with the input they were made of."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankfold.corpora.results import DONE, JOB, Results, model_digest
from rankfold.errors import DataError

TASK = {"command": "score", "model": "abc", "options": {"json": False}}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("one\n")
    return tmp_path / "a.txt"


def write(folder: Path, source: Path, text: str = "1\n") -> None:
    with Results(folder, TASK) as results:
        result = results.write(source, "a.out")
        result.write(text)
        result.finish()


def test_finished_ones_are_known_again(tmp_path: Path, source: Path) -> None:
    out = tmp_path / "out"
    with Results(out, TASK) as results:
        assert not results.is_finished(source, "a.out")
        result = results.write(source, "a.out")
        result.write("1\n")
        assert not (out / "a.out").exists()
        result.finish()
        assert results.is_finished(source, "a.out")
    assert (out / "a.out").read_text() == "1\n"
    assert sorted(path.name for path in out.iterdir()) == ["a.out", "done.jsonl", "job.json", "lock"]
    with Results(out, TASK) as results:
        assert results.is_finished(source, "a.out")


def test_a_changed_input_is_done_again(tmp_path: Path, source: Path) -> None:
    out = tmp_path / "out"
    write(out, source)
    source.write_text("two\n")  # of the same size
    with Results(out, TASK) as results:
        assert not results.is_finished(source, "a.out")
    write(out, source, "2\n")
    with Results(out, TASK) as results:
        assert results.is_finished(source, "a.out")
    assert (out / "a.out").read_text() == "2\n"


def test_a_crash_between_note_and_name(tmp_path: Path, source: Path) -> None:
    """The note is there, the file still the earlier one, or none: it is done again, and nobody is asked."""
    out = tmp_path / "out"
    write(out, source)
    record = json.loads((out / DONE).read_text())
    with (out / DONE).open("a") as stream:
        stream.write(json.dumps({**record, "result": "0" * 64}) + "\n" + '{"name": "a.o')  # and a torn one
    with Results(out, TASK) as results:
        assert not results.is_finished(source, "a.out")
    write(out, source, "3\n")
    with Results(out, TASK) as results:
        assert results.is_finished(source, "a.out")


def test_files_that_are_not_ours_stay(tmp_path: Path, source: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "a.out").write_text("mine\n")
    with Results(out, TASK) as results, pytest.raises(DataError, match="in the way"):
        results.is_finished(source, "a.out")
    (out / "a.out").unlink()
    write(out, source)
    (out / "a.out").write_text("edited\n")
    with Results(out, TASK) as results, pytest.raises(DataError, match="was changed since"):
        results.is_finished(source, "a.out")
    assert (out / "a.out").read_text() == "edited\n"


@pytest.mark.parametrize("other", [{"model": "abd"}, {"options": {"json": True}}, {"command": "tag"}])
def test_a_folder_of_another_job(other: dict[str, object], tmp_path: Path, source: Path) -> None:
    write(tmp_path / "out", source)
    with pytest.raises(DataError, match=f"another job: {next(iter(other))} is .* there, but"):
        Results(tmp_path / "out", {**TASK, **other})
    Results(tmp_path / "out", TASK).close()  # the lock is free again


def test_folders_that_cannot_be_used(tmp_path: Path, source: Path) -> None:
    with pytest.raises(DataError, match="is a file"):
        Results(source, TASK)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / JOB).write_text("[]")
    with pytest.raises(DataError, match="not the job"):
        Results(tmp_path / "out", TASK)
    with Results(tmp_path / "other", TASK), pytest.raises(DataError, match="another process"):
        Results(tmp_path / "other", TASK)


def test_an_input_that_changes_meanwhile(tmp_path: Path, source: Path) -> None:
    with Results(tmp_path / "out", TASK) as results:
        result = results.write(source, "a.out")
        source.write_text("longer\n")
        with pytest.raises(DataError, match="changed while it was read"):
            result.finish()
        result.drop()
    assert not (tmp_path / "out" / "a.out").exists()
    assert not list((tmp_path / "out").glob("*.part"))


@pytest.fixture
def full_disk() -> Iterator[Callable[[int], None]]:
    """A function after which no file grows beyond so many bytes."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_named_and_leaves_nothing(
    tmp_path: Path, source: Path, full_disk: Callable[[int], None]
) -> None:
    out = tmp_path / "out"
    with Results(out, TASK) as results:
        result = results.write(source, "a.out")
        full_disk(600)
        with pytest.raises(OSError, match=r"a\.out could not be written: File too large"):
            result.write("x" * 2**20)
        result.drop()
        assert not list(out.glob("a.out*"))
        result = results.write(source, "a.out")
        result.write("x" * 700)  # still in memory
        with pytest.raises(OSError, match=r"a\.out could not be written: File too large"):
            result.finish()
        result.drop()
    assert sorted(path.name for path in out.iterdir()) == [JOB, "lock"]


def test_a_note_that_the_disk_cuts_short_finishes_nothing(
    tmp_path: Path, source: Path, full_disk: Callable[[int], None]
) -> None:
    out = tmp_path / "out"
    with Results(out, TASK) as results:
        result = results.write(source, "a.out")
        result.write("1\n")
        full_disk(40)
        with pytest.raises(OSError, match=r"a\.out could not be written: File too large"):
            result.finish()
        result.drop()
    assert not list(out.glob("a.out*"))
    full_disk(2**20)
    write(out, source)  # the torn note is passed over
    with Results(out, TASK) as results:
        assert results.is_finished(source, "a.out")


def test_every_file_of_a_model_counts(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text(name)
    before = model_digest(tmp_path)
    (tmp_path / "notes.txt").write_text("no part of it")
    assert model_digest(tmp_path) == before
    (tmp_path / "model.safetensors").write_text("others")
    assert model_digest(tmp_path) != before
