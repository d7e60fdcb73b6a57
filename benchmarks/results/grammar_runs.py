"""Inductions in a folder of results, those that differ by their seed together, and the papers' figures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.results.runs import FAITHFUL, Run, changes
from rankfold.models.config import GrammarConfig
from rankfold.settings import build, read_toml
from rankfold.training.recipes import load_recipe, recipe_names

TEXTS = {"ptb": "ptb-text", "gum": "gum", "cess": "cess-esp"}  # by a part of a folder's name
# Settings that make perplexities of the same text those of another one.
COUNTED = ("max_vocabulary", "min_count", "lower", "numbers", "word_tags")


@dataclass(frozen=True)
class Row:
    """A row of a table: what is published, and which runs stand next to it."""

    table: str
    model: str
    recipe: str = ""
    family: str = ""
    baseline: str = ""  # trees that need no grammar, by their name in an evaluation
    source: str = ""
    note: str = ""
    f1: float | None = None
    best: float | None = None
    convention: str = ""
    valid: float | None = None
    second_hand: bool = False  # figures from a listing, not from the paper itself


@dataclass(frozen=True)
class Table:
    """What runs of a table are trained on, and how many gold trees judge them."""

    data: str
    trees: int


@dataclass(frozen=True)
class Induced:
    """A run of a grammar, and the evaluation of its best model."""

    run: Run

    @property
    def evaluation(self) -> dict[str, Any]:
        """By gold trees; empty where none was made."""
        return self.run.evaluation

    @property
    def model(self) -> GrammarConfig:
        """The grammar."""
        assert isinstance(self.run.config.model, GrammarConfig)
        return self.run.config.model

    @property
    def recipe(self) -> str | None:
        """The shipped recipe it was made by."""
        named = self.evaluation.get("recipe")
        return named if named in recipe_names() else self.run.recipe

    @property
    def data(self) -> str | None:
        """The text it was induced from."""
        parts = self.run.name.replace(".", "-").split("-")
        return self.evaluation.get("data") or next((text for part, text in TEXTS.items() if part in parts), None)

    @property
    def seed(self) -> int:
        """The seed."""
        return self.run.config.train.seed

    @property
    def finished(self) -> bool:
        """Whether training came to its end."""
        return self.run.finished

    @property
    def updates(self) -> int:
        """Updates reached."""
        return int(self.evaluation.get("updates", self.run.updates))

    @property
    def minutes(self) -> float:
        """Of training with its validations, without the evaluation on trees."""
        seconds = self.evaluation.get("seconds", {}).get("training")
        return self.run.minutes if seconds is None else float(seconds) / 60

    @property
    def bound(self) -> bool:
        """Whether its perplexities are bounds of lower ones."""
        return any(record.get("bound") for record in self.run.records)

    @property
    def perplexity(self) -> float | None:
        """Of the trees' sentences."""
        return self.evaluation.get("perplexity")

    @property
    def trees(self) -> int | None:
        """How many gold trees judged it."""
        return self.evaluation.get("trees")

    @property
    def judged(self) -> bool:
        """Whether there are scores."""
        return bool(self.evaluation.get("scores"))

    @property
    def curve(self) -> list[dict[str, Any]]:
        """F1 of the best model so far on a sample of trees, by updates."""
        points: list[dict[str, Any]] = self.evaluation.get("curve", {}).get("points", [])
        return points

    @cached_property
    def changes(self) -> tuple[str, ...]:
        """What was set otherwise than in the recipe, the seed left out."""
        if self.recipe is None:
            return (self.run.name,)
        found = changes(load_recipe(self.recipe), self.run.config)
        return tuple(change for change in found if not change.startswith("train.seed="))

    @property
    def counted(self) -> tuple[Any, ...]:
        """Runs with the same of this have comparable perplexities."""
        return (*(getattr(self.run.config.data, name) for name in COUNTED), self.model.single_words)

    def f1(self, of: str, convention: str, trees: str = "") -> float | None:
        """F1 in percent, "sentence" or "corpus", of the grammar or of a baseline; None where there is no evaluation."""
        scores = self.evaluation.get("scores")
        found = scores and scores.get(trees or self.evaluation["decode"])
        return None if not found else 100 * float(found[convention][of])


def select_inductions(runs: Sequence[Run]) -> list[Induced]:
    """The runs of grammars among them."""
    return [Induced(run) for run in runs if isinstance(run.config.model, GrammarConfig)]


def groups(runs: Sequence[Induced]) -> list[list[Induced]]:
    """Runs that differ by their seed alone, together, recipes as they are first; a run cut short stands by itself."""
    found: dict[tuple[Any, ...], list[Induced]] = {}
    for run in sorted(runs, key=lambda run: (len(run.recipe or ""), len(run.changes), not run.finished, run.seed)):
        apart = "" if run.finished else run.run.name
        found.setdefault((run.recipe, run.changes, run.trees, run.run.gpu, apart), []).append(run)
    return list(found.values())


def read_published() -> tuple[dict[str, Table], list[Row]]:
    """The tables by name, and the papers' rows, their sources written out."""
    path = Path(__file__).with_name("published-grammars.toml")
    content = read_toml(path)
    tables = {name: build(Table, table, source=path) for name, table in content["tables"].items()}
    rows = [build(Row, row, source=f"{path}, row {i}") for i, row in enumerate(content["rows"], 1)]
    sources = content["sources"]
    return tables, [Row(**{**vars(row), "source": sources[row.source] if row.source else ""}) for row in rows]


def belongs(run: Induced, row: Row, table: Table) -> bool:
    """Whether a run stands next to a row."""
    if run.data != table.data:
        return False
    if row.family:
        return run.model.family == row.family
    if row.table == "symbols":  # a comparison of sizes alone
        return run.recipe == row.recipe
    return run.recipe is not None and run.recipe.removesuffix(FAITHFUL) == row.recipe


def mean(values: Sequence[float | None]) -> float | None:
    """The mean, None where there is no value."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def choose_by_validation(found: Sequence[list[Induced]]) -> list[list[Induced]]:
    """Of each vocabulary, the group with the lowest mean validation perplexity, where there are others."""
    by_counted: dict[tuple[Any, ...], list[list[Induced]]] = {}
    for group in found:
        if mean([run.run.valid for run in group]) is not None:
            by_counted.setdefault(group[0].counted, []).append(group)
    return [
        min(rivals, key=lambda group: mean([run.run.valid for run in group]) or 0.0)
        for rivals in by_counted.values()
        if len({group[0].model.family for group in rivals}) > 1
    ]
