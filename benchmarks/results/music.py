"""The page of music: nats per frame of every run on piano rolls, next to what is published."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.results import marks
from benchmarks.results.runs import MUSIC, Row, Run, ending, footnote, read_published
from rankfold.errors import DataError
from rankfold.models.config import FrameConfig
from rankfold.training.recipes import load_recipe

PAGE, FIGURES = "music.md", "published-music.toml"
KIND = "music"
TITLES = dict(zip(MUSIC, ("Nottingham", "Piano-midi", "MuseData", "JSB chorales"), strict=True))
VALID_FRAMES = dict(zip(MUSIC, (45_513, 8_540, 82_755, 4_602), strict=True))
HEAD = ("set", "model", "published test", "test", "valid", "train", "seed", "updates", "GPU minutes", "run")


def write(folder: Path, runs: Sequence[Run], *, pictures: bool = True) -> int:
    """Replace what stands between the marks of the page, which has no pictures; how many runs of music there are.

    A folder without the page is left alone, unless it holds runs of music.
    """
    found, path = [run for run in runs if _is_music(run)], folder / PAGE
    for run in found:
        _expect_its_set(run, folder)
    if not path.exists():
        if found:
            raise DataError(f"{path}: no such file, but {found[0].name} is a run on piano rolls, which goes there.")
        return 0
    if (num := len(marks.find(path, KIND))) != 1:
        raise DataError(
            f"{path}: has {num} places for a table, but one was expected.\n"
            "  It goes between <!-- music --> and <!-- end of music -->."
        )
    marks.replace(folder, [PAGE], KIND, lambda _: section(read_published(FIGURES), found))
    return len(found)


def section(rows: Sequence[Row], runs: Sequence[Run]) -> str:
    """The table, its notes, and the commands of its runs; those of no row come last, by set."""
    lines: list[list[str]] = []
    notes: list[str] = []
    shown: list[Run] = []
    for row in rows:
        label = [TITLES[_name(row.corpus)], row.model + footnote(row.source, row.note, notes), f"{row.test:.2f}"]
        own = [run for run in runs if belongs(run, row)]
        shown += own
        lines += [[*label, *_cells(run)] for run in own] or [[*label, "not run", *[""] * (len(HEAD) - 4)]]
    others = [run for name in MUSIC for run in runs if run not in shown and _name(run.corpus) == name]
    lines += [[TITLES[_name(run.corpus)], run.name, "-", *_cells(run)] for run in others]
    return marks.join(
        marks.table(HEAD, lines, left=(0, 1, 9)),
        marks.number_notes(notes),
        "\n".join(f"- `{run.name}`: `{run.command}`" for run in [*shown, *others]),
    )


def belongs(run: Run, row: Row) -> bool:
    """Whether a run is of a row's set and recipe, and of its sizes."""
    return (run.corpus, run.recipe) == (row.corpus, row.recipe) and _sizes(run.config.model) == _sizes(
        load_recipe(row.recipe).model
    )


def _is_music(run: Run) -> bool:
    return isinstance(run.config.model, FrameConfig) and run.config.model.observations == "bernoulli"


def _expect_its_set(run: Run, folder: Path) -> None:
    """`DataError` unless a run's name has a set of music, whose valid frames are those it was evaluated on."""
    name = _name(run.corpus)
    if name not in MUSIC:
        raise DataError(
            f"{folder / run.name}: is a run on piano rolls, but its name has none of {', '.join(MUSIC)}.\n"
            f"  Name it after its recipe and its set: {run.recipe or 'music-hmm-2048'}-{MUSIC[-1]}."
        )
    for record in run.records:
        frames = record.get("valid_tokens", VALID_FRAMES[name])
        if frames != VALID_FRAMES[name]:
            raise DataError(
                f"{folder / run.name}: was evaluated on {frames:,} valid frames, but {name} has "
                f"{VALID_FRAMES[name]:,}.\n  Name it after its own set."
            )


def _name(corpus: str | None) -> str:
    return (corpus or "").removesuffix(".npz")


def _sizes(model: object) -> tuple[object, ...]:
    assert isinstance(model, FrameConfig), "only models of frames come here"
    return model.family, model.num_states, model.own_rank


def _cells(run: Run) -> list[str]:
    nats = ["-" if value is None else f"{value:.2f}" for value in (run.test, run.valid, run.train)]
    return [*nats, *ending(run)]
