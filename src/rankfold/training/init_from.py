"""A run that starts from another: its model's parameters, and the meaning of its inputs, words or features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from rankfold.data.tokenize import Tokenizer
from rankfold.errors import DataError
from rankfold.files import read_json, write_text
from rankfold.models.base import Model
from rankfold.models.pretrained import load_any
from rankfold.models.sharded import cut_state
from rankfold.settings import to_mapping
from rankfold.training.corpus import Corpus
from rankfold.training.in_memory import is_in_memory
from rankfold.training.run_dir import INIT, model_folder


class Origin:
    """The model that a run starts from, and where it was found."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.model: Model[Any, Any] = load_any(model_folder(self.path))

    def expect_kind(self, config: Any) -> None:
        """Raise unless the model is of the kind of data that a run's configuration is of, and knows its words."""
        own = self.model.config
        if own.data != config.data:
            raise DataError(
                f'{self.path} is a model of the family "{own.family}", of {own.data}, but model.family is '
                f'"{config.family}", of {config.data}.\n  Start from a model of the same family.'
            )
        if own.data != "recordings" and self.model.vocabulary is None:
            raise DataError(f"{self.path}: the model was saved without a vocabulary, so its ids have no words.")
        if own.data == "recordings" and self.model.space is None:
            raise DataError(f"{self.path}: the model was saved without frames.json, the scale of its features.")

    def fill(self, model: Model[Any, Any]) -> None:
        """Copy all parameters; `DataError`, before any is changed, where names or shapes differ."""
        found, own = self.model.state_dict(), model.state_dict()
        found = found if model.shard is None else cut_state(model, found)
        shapes = [{name: tuple(x.shape) for name, x in held.items()} for held in (found, own)]
        wrong = sorted({name for name, _ in shapes[0].items() ^ shapes[1].items()})
        if wrong:
            settings, others = to_mapping(self.model.config), to_mapping(model.config)
            names = [name for name in dict.fromkeys([*settings, *others]) if settings.get(name) != others.get(name)]
            told = [f"model.{name} is {settings.get(name)!r} there, {others.get(name)!r} here" for name in names]
            there, here = (x.get(wrong[0], "missing") for x in shapes)
            raise DataError(
                f"{self.path}: its parameters do not fit: {wrong[0]} is {there} there, {here} here.\n"
                f"  {'; '.join(told)}. Leave --recipe out to take the settings of that run."
            )
        with torch.no_grad():
            for name, x in own.items():
                x.copy_(found[name])

    def lines(self, data: Any) -> list[str]:
        """What a person should know: where the parameters come from, and how well its words fit the text."""
        lines = [f"parameters of {self.path}"]
        if isinstance(data, Corpus):
            train, num = data.train, len(data.vocabulary)
            seen = len({i for row in train for i in row})
            lines.append(
                f"its vocabulary of {num:,} words is kept: {seen:,} of them are in the training text, where "
                f"{train.num_unknown:,} tokens ({train.num_unknown / train.num_tokens:.1%}) are other words, "
                "counted as <unk>"
            )
        else:
            lines.append("the scale of its features is kept")
        return lines

    def tokenizer_warnings(self, data: Any) -> list[str]:
        """A warning if a prepared text was cut into words by another tokenizer than the text of the model."""
        vocabulary = self.model.vocabulary
        if vocabulary is None or is_in_memory(data):
            return []
        own, given = vocabulary.tokenizer, Tokenizer.load(data)
        if own == given:
            return []
        other = "by other subwords" if own.kind == given.kind else f'by "{given.kind}"'
        return [
            f'warning: the tokenizer of the model is "{own.kind}", but the words of {data} were cut {other}: new text '
            "will be cut as the model was, not as this one"
        ]

    def note(self, run: Path) -> None:
        """Write down where the run started."""
        write_text(run / INIT, json.dumps({"init_from": str(self.path.resolve())}) + "\n")


def expect_checkpoint(run: Path) -> None:
    """Raise for a run without a checkpoint that did not start from its seed: it cannot start again by itself."""
    if (run / INIT).is_file():
        found = read_json(run / INIT, "the init.json of a run, which says where it started")
        origin = found.get("init_from") if isinstance(found, dict) else None
        raise DataError(
            f"{run}: started from {origin}, and was stopped before its first checkpoint.\n"
            f"  Start it again into another --out, with --init-from {origin}."
        )
