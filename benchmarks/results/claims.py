"""Sentences and tables with figures of runs in them: the pages of the papers, and what other pages say of their runs.

`claims.toml` has them as Markdown with marks in braces, which the runs of the archive fill; a run that is not there
says "not run". RUN is also the name of a mixture, `mixture-*.json` next to the pages, or of a part of it:
`mixture-ptb/RUN`. They stand between `<!-- figures NAME -->` and `<!-- end of figures -->`.

    {valid RUN}  {test RUN}  {train RUN}  {f1 RUN}  {minutes RUN}     a figure; of several runs, one after the other
    {mean f1 RUN RUN}                                    their mean
    {gap valid RUN RUN}                                  the first less the second
    {below valid RUN RUN}                                by how much they lie below the papers' figures, from to
    {if valid RUN < 141: words: other words}             by a comparison with a number, or with another run
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.results import marks
from benchmarks.results.grammar_runs import Induced, mean
from benchmarks.results.runs import Run, read_published
from rankfold.errors import DataError
from rankfold.files import read_json
from rankfold.settings import read_toml

KIND = "figures"
TEXTS = Path(__file__).with_name("claims.toml")
NOT_RUN = "not run"
QUANTITIES = ("valid", "test", "train", "f1", "minutes")


class Mixture(NamedTuple):
    """What `python -m benchmarks mixture` wrote."""

    valid: float
    test: float
    minutes: float | None
    train: float | None = None
    finished: bool = True
    unit: str = "perplexity"


def write(folder: Path, runs: Sequence[Run]) -> None:
    """Fill the marks of all pages of the folder."""
    texts = read_texts()
    known: dict[str, Run | Mixture] = {run.name: run for run in runs}
    for path in folder.glob("mixture-*.json"):
        content = read_json(path, "the results of a mixture")
        for name, row in ((path.stem, content), *((f"{path.stem}/{part['run']}", part) for part in content["parts"])):
            known[name] = Mixture(row["valid"], row["test"], row["minutes"])

    def body(name: str) -> str:
        if name not in texts:
            raise DataError(f"{folder}: a page has the mark {KIND} {name}, of which {TEXTS.name} knows nothing.")
        return fill(texts[name], known)

    marks.replace(folder, sorted(path.name for path in folder.glob("*.md")), KIND, body)


def read_texts() -> dict[str, str]:
    """The texts by name, their marks not yet filled."""
    return {name: text.strip() for name, text in read_toml(TEXTS).items()}


def fill(text: str, runs: Mapping[str, Run | Mixture]) -> str:
    """The text with its figures."""
    return re.sub(r"\{([^{}]+)\}", lambda mark: _figure(mark[1], runs), text)


def _figure(mark: str, runs: Mapping[str, Run | Mixture]) -> str:
    words = mark.split()
    if words[0] == "if":
        return _choice(mark.removeprefix("if "), runs)
    how = words.pop(0) if words[0] in ("mean", "gap", "below") else ""
    if not words or words[0] not in QUANTITIES:
        raise DataError(f"{TEXTS.name}: {{{mark}}} asks for none of {', '.join(QUANTITIES)}.")
    of, names = words[0], words[1:]
    values = [_value(of, name, runs) for name in names]
    known = [value for value in values if value is not None]
    if len(known) < len(values) and (how or not known):
        return NOT_RUN
    if how == "mean":
        return _shown(mean(known), of, names[0], runs)
    if how == "gap":
        return _shown(known[0] - known[1], of, names[0], runs)
    if how == "below":
        gaps = sorted(round(_published(of, name, runs) - value) for name, value in zip(names, known, strict=True))
        return f"{gaps[0]}" if gaps[0] == gaps[-1] else f"{gaps[0]} to {gaps[-1]}"
    return ", ".join(_shown(value, of, name, runs) for name, value in zip(names, values, strict=True))


def _choice(mark: str, runs: Mapping[str, Run | Mixture]) -> str:
    parts = [part.strip() for part in mark.split(":")]
    found = re.fullmatch(r"(\w+) (\S+) < (?:(\w+) )?(\S+)", parts[0])
    if len(parts) != 3 or found is None:
        raise DataError(f"{TEXTS.name}: {{if {mark}}} is not {{if QUANTITY RUN < NUMBER: words: other words}}.")
    of, name, other_of, other = found.groups()
    left = _value(of, name, runs)
    right = float(other) if other_of is None else _value(other_of, other, runs)
    if left is None or right is None:
        return NOT_RUN
    return parts[1] if left < right else parts[2]


def _value(of: str, name: str, runs: Mapping[str, Run | Mixture]) -> float | None:
    run = runs.get(name)
    if run is None or not run.finished:
        return None
    if of == "f1":
        return Induced(run).f1("sentence", "uf1") if isinstance(run, Run) else None
    return {"valid": run.valid, "test": run.test, "train": run.train, "minutes": run.minutes}[of]


def _shown(value: float | None, of: str, name: str, runs: Mapping[str, Run | Mixture]) -> str:
    nats = name in runs and runs[name].unit == "nats" and of != "minutes"
    return NOT_RUN if value is None else f"{value:.2f}" if nats else f"{value:.1f}"


def _published(of: str, name: str, runs: Mapping[str, Run | Mixture]) -> float:
    run = runs[name]
    corpus = run.corpus if isinstance(run, Run) else None
    rows = [row for row in read_published() if row.recipe == name and row.corpus == corpus]
    figures = [getattr(row, of) for row in rows]
    if len(figures) != 1 or figures[0] is None:
        raise DataError(f"{TEXTS.name}: no {of} figure of {name} is published, below which it could lie.")
    return float(figures[0])
