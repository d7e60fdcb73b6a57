"""The model that a command names, and its input: text or recordings, read and encoded as the model knows them.

Lines without words keep their place; unknown words and sentences too long for the memory are reported before the work.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from rankfold.cli.output import printable, say
from rankfold.data.frame_files import Header
from rankfold.data.frame_space import FILE, FrameSpace
from rankfold.data.frames import Frames, Missing
from rankfold.data.text import STDIN, read_lines
from rankfold.data.vocab import Vocabulary
from rankfold.errors import DataError, UnsupportedError, refuse_mps
from rankfold.models.base import Model
from rankfold.models.catalog import AnyModel
from rankfold.models.config import FrameFamily
from rankfold.models.frame_model import FrameModel
from rankfold.models.pretrained import load_any, load_model
from rankfold.models.strings import expect_ends, split_line
from rankfold.settings import build, read_toml
from rankfold.training.config import Config, DataConfig
from rankfold.training.memory_budget import meta_model
from rankfold.training.recipes import load_recipe, recipe_names
from rankfold.training.recordings import expect_observed, read_splits
from rankfold.training.run_dir import CONFIG, is_starter, model_folder, recipe_path
from rankfold.training.setup import choose_device

NUM_SHOWN = 5  # unknown words
NUM_WORDS, BATCH = 10_000, 8  # of a recipe whose step is planned or timed, where no number is given


def add_model(parser: argparse.ArgumentParser) -> None:
    """The argument RUN, with --device and --json."""
    text = "the folder of a run (its best model) or of a model; or starter, starter-grammar, which are in the package"
    parser.add_argument("folder", type=Path, metavar="RUN", help=text)
    add_options(parser)


def add_options(parser: argparse.ArgumentParser) -> None:
    """--device and --json."""
    parser.add_argument(
        "--device",
        type=device_name,
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="auto: cuda where there is one (default)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def device_name(text: str) -> str:
    """The name of a device as it is; mps is refused with the reason."""
    try:
        refuse_mps(text)
    except UnsupportedError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def add_text(parser: argparse.ArgumentParser, what: str = "one sentence per line") -> None:
    """The argument FILE, also called --data."""
    parser.add_argument("file", nargs="?", metavar="FILE", help=f"{what}; - or nothing: standard input")
    parser.add_argument("--data", metavar="FILE", help="the same as FILE")


def count(text: str) -> int:
    """A whole number of at least 1, as an argument."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def add_missing(parser: argparse.ArgumentParser) -> None:
    """The arguments --missing and --header, of recordings."""
    parser.add_argument(
        "--missing",
        choices=("error", "row", "feature"),
        default="error",
        help="a row with some values missing is an error (default), a missing row, or its other features count",
    )
    parser.add_argument(
        "--header",
        choices=("auto", "yes", "no"),
        default="auto",
        help="whether the first line of a .csv is names of columns; auto (default): if it holds no number",
    )


def find_device(name: str) -> str:
    """The device that "auto" stands for; "cuda" only where there is one."""
    return str(choose_device(name, "--device"))


def load_words(path: Path, device: str = "auto") -> tuple[AnyModel, Vocabulary]:
    """The model of words of a run or folder, and the words its ids mean."""
    folder = model_folder(path)
    model = load_model(folder, device=find_device(device))
    if model.vocabulary is None:
        raise DataError(
            f"{folder}: the model was saved without a vocabulary, so its ids have no words.\n"
            "  Set model.vocabulary and save it again."
        )
    try:
        expect_ends(model.vocabulary, model.config)
    except DataError as error:
        raise DataError(f"{folder}: {error}") from None
    return model, model.vocabulary


def load_frames(path: Path, device: str = "auto") -> tuple[FrameModel, FrameSpace]:
    """The model of frames of a run or folder, and the scale and names of its features."""
    folder = model_folder(path)
    if not holds_frames(path):
        raise UnsupportedError(
            f"{folder} holds a model of words, but one of frames was expected.\n"
            f"  Train one with a recipe of the families {', '.join(get_args(FrameFamily))}: rankfold train --list."
        )
    model = FrameModel.from_pretrained(folder, device=find_device(device))
    if model.space is None and not (folder / FILE).exists():  # made in Python: features as they are
        return model, FrameSpace(1 if model.observation.symbols else model.config.num_features)
    assert model.space is not None
    return model, model.space


def holds_frames(path: Path) -> bool:
    """Whether the model of a run or folder is one of frames, by its config.json alone."""
    try:
        family = json.loads((model_folder(path) / CONFIG).read_bytes())["model"]["family"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False  # loading it raises the error
    return family in get_args(FrameFamily)


def data_config(path: Path) -> DataConfig:
    """How the run of a model read and cut its data; the defaults for a model by itself."""
    recipe = recipe_path(path)
    return DataConfig() if recipe is None else build(Config, read_toml(recipe), source=recipe).data


def find_model(name: str, settings: Sequence[str] = (), num_words: int | None = None) -> Model[Any, Any]:
    """The model of a run or folder, or one of a recipe's sizes whose parameters have no values."""
    if name in recipe_names() or not (Path(name).is_dir() or is_starter(Path(name))):
        config: Any = load_recipe(name, settings).model
        num_inputs = NUM_WORDS if num_words is None else num_words
        if config.data == "recordings":
            num_inputs = config.num_features
            if not num_inputs:
                raise DataError(
                    f"{name} takes as many features as its recordings have, which are not known here.\n"
                    "  Say how many: --set model.num_features=12."
                )
        return meta_model(config, num_inputs)
    if settings or num_words is not None:
        raise DataError(f"{name} is a model, whose sizes are fixed: --set and --words are for recipes.")
    return load_any(model_folder(Path(name)))


def own_recipe(name: str, settings: Sequence[str] = ()) -> Config | None:
    """The recipe of that name, or that of a run; None for a model by itself."""
    if name in recipe_names() or not (Path(name).is_dir() or is_starter(Path(name))):
        return load_recipe(name, settings)
    path = recipe_path(Path(name))
    return None if path is None else load_recipe(path)


class Text(NamedTuple):
    """The lines of a text; those without words are no sentences, but keep their place."""

    where: str
    lines: list[str]
    words: list[list[str]]  # of each line
    first: int = 1  # the number of the first line, where it is a piece of a text
    ids: list[str] | None = None  # of each line, where results are to begin with them

    @property
    def label(self) -> str:
        """Which piece of which text it is, for an error."""
        return f"{self.where}, lines {self.first} to {self.first + len(self.lines) - 1}"

    @property
    def places(self) -> list[str]:
        """Where each line stands, for an error."""
        return [f"{self.where}, line {number}" for number in range(self.first, self.first + len(self.words))]

    @property
    def sentences(self) -> list[list[str]]:
        """The words of the lines that have any."""
        return [words for words in self.words if words]

    def align(self, answers: Iterable[Any], empty: Any = None) -> list[Any]:
        """The answers to its sentences, with `empty` at the lines without words."""
        following = iter(answers)
        return [next(following) if words else empty for words in self.words]


def text_path(arguments: argparse.Namespace) -> Path | None:
    """The FILE of a command; None for standard input."""
    if arguments.file is not None and arguments.data is not None:
        raise DataError(f"the text is given twice: as {arguments.file} and as --data {arguments.data}.")
    given = arguments.data if arguments.file is None else arguments.file
    if given not in (None, "-"):
        return Path(given)
    if sys.stdin.buffer.isatty():
        say("reading standard input, one sentence per line")
    return None


def read_text(path: Path | None, vocabulary: Vocabulary, *, ends: bool = False) -> Text:
    """All lines of a file, or (None) of standard input, cut into words as the text of the vocabulary was.

    With `ends`, `<eos>` is a word like others.
    """
    lines = read_lines(path, ends=keeps_ends(vocabulary, ends=ends))
    words = [split_line(line, vocabulary, ends=ends) for line in lines]
    return Text(str(STDIN if path is None else path), lines, words)


def keeps_ends(vocabulary: Vocabulary, *, ends: bool) -> bool:
    """Whether `<eos>` may stand in a line: where a tokenizer cuts words, it is characters like others."""
    return ends or vocabulary.tokenizer.kind != "spaces"


def tell_unknown(sentences: Iterable[Sequence[str]], vocabulary: Vocabulary) -> int:
    """How many words count as <unk>; said on standard error, the most frequent first."""
    unknown = Counter(word for words in sentences for word in words if not vocabulary.knows(word))
    tell_unknown_words(unknown, vocabulary)
    return unknown.total()


def tell_unknown_words(unknown: Counter[str], vocabulary: Vocabulary, *, others: int = 0) -> None:
    """Say on standard error which words count as <unk>, the most frequent first; `others` were not counted by word."""
    if not unknown:
        return
    ordered = sorted(unknown.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{printable(word)} ({count:,})" for word, count in ordered[:NUM_SHOWN])
    more = f" and {len(ordered) - NUM_SHOWN:,} more" if len(ordered) > NUM_SHOWN else ""
    beyond = f", and {others:,} words that came after so many different ones" if others else ""
    total = unknown.total() + others
    say(f"words not in the vocabulary, counted as <unk>: {total:,}, of them {shown}{more}{beyond}")
    if not vocabulary.has_unk_mass:
        say("warning: the training text held no <unk>, so unknown words have no trained probability")


def add_recordings(parser: argparse.ArgumentParser) -> None:
    """The arguments of a command about recordings: RUN, DATA, --split, and how files are read."""
    add_model(parser)
    parser.add_argument("data", type=Path, metavar="DATA", help="a file or folder of recordings")
    parser.add_argument("--split", help="which split, where the recordings have splits")
    add_missing(parser)


def load_asked(arguments: argparse.Namespace) -> LoadedFrames:
    """The model and the recordings of `add_recordings`."""
    names = ("split", "missing", "header", "device")
    return load_recordings(arguments.folder, arguments.data, **{name: getattr(arguments, name) for name in names})


class LoadedFrames(NamedTuple):
    """A model of frames, and recordings for it."""

    model: FrameModel
    space: FrameSpace
    given: Frames  # as they were read
    frames: Frames  # on the scale of the model


def load_recordings(
    path: Path,
    data: Path,
    *,
    split: str | None = None,
    missing: Missing = "error",
    header: Header = "auto",
    device: str = "auto",
) -> LoadedFrames:
    """The model, and the recordings of a file or folder: those of `split`, or all where there are no splits."""
    if str(data) == "-":
        raise DataError("recordings are read from a file or a folder, not from standard input: give its name.")
    model, space = load_frames(path, device)
    found = read_splits(data, missing=missing, header=header)
    if split is not None and list(found) == ["train"] and split != "train":
        given = found["train"]  # without splits of its own
        if given.splits is not None:
            raise DataError(f"{data}: no split {split!r}; there is train alone.\n  Say --split train.")
    elif split is not None:
        if split not in found:
            raise DataError(f"{data}: no split {split!r}; there are {', '.join(found)}.\n  Say which with --split.")
        given = found[split]
    elif len(found) > 1:
        raise DataError(f"{data}: has the splits {', '.join(found)}.\n  Say which with --split.")
    else:
        given = next(iter(found.values()))
    expect_observed(given, model.config)
    return LoadedFrames(model, space, given, space.apply(given))
