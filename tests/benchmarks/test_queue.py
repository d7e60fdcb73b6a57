"""The queue of runs: its order, a deadline that cuts runs off, going on, and the archive of small files."""

import json
import shlex
import sys
import tarfile
import time
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import induce, queue
from benchmarks.__main__ import COMMANDS
from benchmarks.results import archive
from rankfold.cli import build_parser
from rankfold.errors import DataError
from rankfold.training.recipes import load_recipe
from tests.benchmarks.results.test_language_models_page import FINISHED, record

QUEUE = """
runs = [
    {name = "small-lhmm-long", group = "small", settings = ["train.seed=2"], minutes = 0},
    {name = "demo-grammar", seeds = [3], group = "trees", minutes = 0},
    {name = "small-rank-never", data = "texts/toy", minutes = 1000},
    {name = "words-toy", module = "json.tool {data}/words.json {out}", share = 0, minutes = 0},
    {name = "more-words-toy", module = "json.tool {data}/words.json", after = ["words-toy"], share = 0, minutes = 0},
]
[groups]
small = {data = "texts/toy", share = 0.5, settings = ["train.updates=7"]}
trees = {data = "texts/toy", share = 0.5, gold = "texts/toy"}
"""
# In place of training: the short run ends by itself, the long one when it is told to; both add to what is there.
RUN = """
import json, pathlib, signal, sys
folder, ends = pathlib.Path(sys.argv[1]), sys.argv[2] == "True"
folder.mkdir(exist_ok=True)
(folder / "recipe.toml").write_text("[train]\\nupdates = 7\\n")
(folder / "environment.json").write_text(json.dumps({"argv": [str(folder)]}))
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
metrics = (folder / "metrics.jsonl").open("a")
print(json.dumps({"update": 1, "seconds": 1.0, "valid_perplexity": 2.5}), file=metrics, flush=True)
if ends:
    print(json.dumps({"update": 1, "seconds": 1.0, "end": True}), file=metrics)
    (folder / "evaluation.json").write_text("{}")
while not (ends or stop):
    signal.pause()
"""


def test_runs_end_are_cut_off_and_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(entry: queue.Entry, data: Path, work: Path, device: str) -> list[str]:
        if entry.module:
            return real(entry, data, work, device)
        return [sys.executable, "-c", RUN, str(work / entry.folder), str(bool(entry.gold))]

    real = queue.Entry.command
    monkeypatch.setattr(queue, "GRACE", 1)
    monkeypatch.setattr(queue.Entry, "command", command)
    path, work, archive = tmp_path / "queue.toml", tmp_path / "work", tmp_path / "small.tar.gz"
    path.write_text(QUEUE)
    (tmp_path / "words.json").write_text("[1]")
    given = ["--queue", str(path), "--data", str(tmp_path), "--work", str(work), "--pack", str(archive)]
    given += ["--results", str(tmp_path / "none"), "--parallel", "2", "--minutes", str(5 / 60)]
    assert queue.main(given) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "cut off" in lines["small-lhmm-long"]
    assert "valid 2.5" in lines["small-lhmm-long"]
    assert "done" in lines["demo-grammar-s3"]
    assert "to do" in lines["small-rank-never"]
    assert "done" in lines["words-toy"]
    assert "done" in lines["more-words-toy"]  # which writes to standard output
    with tarfile.open(archive) as packed:
        names = set(packed.getnames())
        environment = packed.extractfile("small-lhmm-long/environment.json")
        assert environment is not None
        assert json.load(environment)["argv"][-3:] == ["toy", "--out", "run"]
    small = {f"small-lhmm-long/{name}" for name in ("recipe.toml", "metrics.jsonl", "environment.json")}
    assert names >= {*small, "demo-grammar-s3/evaluation.json", "words-toy.json", "more-words-toy.json"}
    assert json.loads((work / "more-words-toy.json").read_text()) == [1]
    assert queue.main(given) == 0
    assert len((work / "small-lhmm-long" / "metrics.jsonl").read_text().splitlines()) == 2
    assert len((work / "demo-grammar-s3" / "metrics.jsonl").read_text().splitlines()) == 2


def test_runs_on_the_pages_are_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, folder = tmp_path / "queue.toml", tmp_path / "results"
    path.write_text(QUEUE)
    folder.mkdir()
    given = ["--queue", str(path), "--results", str(folder)]
    for evaluation, expected in ((None, "cut off"), ({"trees": 3}, "done")):  # a grammar's is judged, too
        run = record("demo-grammar-s3", "demo-grammar", FINISHED, evaluation=evaluation)
        archive.write_archives(folder, [run])
        assert queue.main(given) == 0
        lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
        assert expected in lines["demo-grammar-s3"]
        assert "39,000 updates, 3.0 minutes, valid 140.0, test 130.0" in lines["demo-grammar-s3"]
        assert "to do" in lines["small-rank-never"]


def test_commands_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "queue.toml"
    path.write_text(QUEUE)
    words, grammar, *_ = (entry.command(tmp_path, tmp_path, "cpu") for entry in queue.read_queue(path))
    read = build_parser().parse_args(words[3:])
    assert (read.recipe, read.settings) == ("small-lhmm", ["train.updates=7", "train.seed=2", "train.device=cpu"])
    judged = induce._parser().parse_args(grammar[3:])
    assert (judged.recipe, judged.seeds, len(judged.trees)) == ("demo-grammar", [3], 3)
    (tmp_path / "small-lhmm-long").mkdir()
    (tmp_path / "small-lhmm-long" / "recipe.toml").touch()
    assert "--resume" in queue.read_queue(path)[0].command(tmp_path, tmp_path, "cpu")


def test_entries_of_the_shipped_queue_are_runs_of_shipped_recipes() -> None:
    entries = queue.read_queue()
    assert len({entry.folder for entry in entries}) == len(entries)
    folders = [entry.folder for entry in entries]
    for number, entry in enumerate(entries):
        assert set(entry.after) <= set(folders[:number])
        if not entry.module:
            load_recipe(entry.recipe, entry.settings)
            assert entry.data
            continue
        module, command, *given = shlex.split(entry.module.format(data="d", work="w", device="cpu", out="o"))
        assert module == "benchmarks"
        import_module(COMMANDS[command])._parser().parse_args(given)


def test_what_is_wrong_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "queue.toml"
    path.write_text('runs = [{name = "nothing", data = "x", minutes = 1, group = "none"}]\n[groups]\n')
    assert queue.main(["--queue", str(path)]) == 2
    assert "group 'none'" in capsys.readouterr().err
    path.write_text('runs = [{name = "nothing", data = "x", minutes = 0}]\n[groups]\n')
    assert queue.main(["--queue", str(path), "--data", str(tmp_path), "--work", str(tmp_path / "work")]) == 2
    assert "nothing begins with the name of no shipped recipe" in capsys.readouterr().err


def test_a_run_is_begun_where_it_ends_in_what_remains() -> None:
    long, short = queue.Entry("long", 60), queue.Entry("short", 3)
    needs = queue.Entry("needs", 1, after=("short",))
    waiting = {entry: entry.minutes for entry in (long, needs, short)}
    assert queue.choose(waiting, 90, {"long", "short"}) == long
    assert queue.choose(waiting, 9, {"long", "short"}) == short
    assert queue.choose(waiting, 9, {"long"}) == needs
    assert queue.choose(waiting, 0.5) is None
    half = record("long", "small-lhmm", [{"update": 30, "seconds": 9.0}])
    half.recipe["train"]["updates"] = 120
    assert queue.minutes_left(long, {"long": half}) == 45
    assert queue.minutes_left(long, {}) == 60


def test_shares_of_a_gpu_are_kept_below_half_the_number_of_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of three at a time: the third would be too much, and the small one behind it does not pass it by."""
    monkeypatch.setattr(queue, "GRACE", 0)
    wait = [sys.executable, "-c", "import time; time.sleep(0.5)"]
    ended: list[int] = []
    entries = [queue.Entry(f"run{number}", 0, share=share) for number, share in enumerate((0.8, 0.7, 0.7, 0.1))]
    times = {"deadline": time.monotonic() + 60, "end": time.monotonic() + 60}
    assert not queue.run(
        dict.fromkeys(entries, wait),
        tmp_path,
        dict.fromkeys(entries, 0.0),
        parallel=3,
        ended=lambda: ended.append(1),
        **times,
    )
    assert len(ended) == 4
    events = ["end" if "finished" in line else "begin" for line in capsys.readouterr().err.splitlines()]
    assert events[:3] == ["begin", "begin", "end"]
    assert events.count("begin") == 4


def test_what_was_cut_off_is_carried_and_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, work = tmp_path / "queue.toml", tmp_path / "work"
    path.write_text(QUEUE)
    entries = queue.read_queue(path)
    line = json.dumps({"update": 1, "seconds": 1.0}) + "\n"
    for folder in ("small-lhmm-long", "demo-grammar-s3"):
        for name, content in (
            ("recipe.toml", "[train]\nupdates = 7\n"),
            ("environment.json", "{}"),
            ("metrics.jsonl", line),
        ):
            (work / folder).mkdir(parents=True, exist_ok=True)
            (work / folder / name).write_text(content)
    model = work / "models" / "demo-grammar-s3"
    (model / "best").mkdir(parents=True)
    (model / "best" / "model.safetensors").write_bytes(bytes(2500))
    for name in ("checkpoint.safetensors", "checkpoint-before.safetensors"):
        (work / "small-lhmm-long" / name).write_bytes(b"x" * 5000)
    monkeypatch.setattr(queue, "PART", 4096)
    queue.carry(entries, work, tmp_path / "all", most=1)
    assert len(list((tmp_path / "all").iterdir())) > 2
    assert all(part.stat().st_size <= 4096 for part in (tmp_path / "all").iterdir())
    queue.restore(tmp_path / "all", tmp_path / "again")
    found = {
        file.relative_to(tmp_path / "again").as_posix() for file in (tmp_path / "again").rglob("*") if file.is_file()
    }
    assert "models/demo-grammar-s3/best/model.safetensors" in found
    assert "small-lhmm-long/checkpoint.safetensors" in found
    assert "small-lhmm-long/checkpoint-before.safetensors" not in found
    assert (tmp_path / "again" / "small-lhmm-long" / "checkpoint.safetensors").read_bytes() == b"x" * 5000
    queue.carry(entries, work, tmp_path / "few", most=0.004)
    assert "small-lhmm-long: 0 MB to go on do not fit" in capsys.readouterr().err
    queue.restore(tmp_path / "few", tmp_path / "grammar")
    assert not (tmp_path / "grammar" / "small-lhmm-long").exists()
    next((tmp_path / "all").glob("cut-off.001-*")).unlink()
    for folder in (tmp_path / "all", tmp_path / "none"):
        with pytest.raises(DataError, match=r"files cut-off\.\*, not all"):
            queue.restore(folder, tmp_path / "broken")
    assert not (tmp_path / "broken").exists()
