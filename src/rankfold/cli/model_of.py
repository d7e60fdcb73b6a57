"""The model a command is told of: the best one of a run, or a folder that holds one; and words as its ids.

Read next: `models/pretrained.py`, which reads the folder.
"""

from __future__ import annotations

import argparse
import sys
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankfold.data.vocab import Vocabulary
from rankfold.errors import DataError, UnsupportedError
from rankfold.models.catalog import AnyModel
from rankfold.models.pretrained import load_model
from rankfold.models.sequence_model import SequenceModel
from rankfold.planning.machine import GIB, available
from rankfold.training.corpus import expect_ends
from rankfold.training.run_dir import BEST, RECIPE
from rankfold.training.setup import chosen_device

CONFIG = "config.json"
NUM_SHOWN = 5  # unknown words


def add_model(parser: argparse.ArgumentParser) -> None:
    """The argument RUN, with --device and --json."""
    parser.add_argument("folder", type=Path, metavar="RUN", help="the folder of a run (its best model) or of a model")
    add_options(parser)


def add_text(parser: argparse.ArgumentParser, what: str = "one sentence a line") -> None:
    """The argument FILE, which --data names, too."""
    parser.add_argument("file", nargs="?", metavar="FILE", help=f"{what}; - or nothing: standard input")
    parser.add_argument("--data", metavar="FILE", help="the same as FILE")


def text_path(arguments: argparse.Namespace) -> Path | None:
    """The FILE a command is told of; None for standard input."""
    if arguments.file is not None and arguments.data is not None:
        raise DataError(f"the text is given twice: as {arguments.file} and as --data {arguments.data}.")
    given = arguments.data if arguments.file is None else arguments.file
    if given not in (None, "-"):
        return Path(given)
    if sys.stdin.buffer.isatty():
        say("reading standard input, one sentence a line")
    return None


def tell_empty(where: str | Path, num: int) -> None:
    """Say on standard error how many lines have no words: they keep their place."""
    if num:
        say(f"{where}: {num:,} empty {'line stays' if num == 1 else 'lines stay'} empty")


def add_options(parser: argparse.ArgumentParser) -> None:
    """--device and --json."""
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: cuda where there is one (default)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def model_folder(path: Path) -> Path:
    """The folder that holds config.json: the path itself, or the best model of the run there."""
    if not path.is_dir():
        what = "a file, but a folder" if path.exists() else "no such folder; the folder"
        raise DataError(f"{path}: {what} of a run or of a model was expected.")
    for folder in (path, path / BEST):
        if (folder / CONFIG).is_file():
            return folder
    if (path / RECIPE).is_file():
        raise DataError(
            f"{path}: the run has no model yet: {BEST}/ is written at its first evaluation.\n"
            "  Wait for it, or go on with the run: rankfold train --resume."
        )
    raise DataError(
        f"{path}: holds no model: neither {CONFIG} nor {BEST}/{CONFIG} is there.\n"
        "  Give the folder that rankfold train --out made, or one that save_pretrained wrote."
    )


def recipe_path(path: Path) -> Path | None:
    """The recipe of the run that a path names, or whose best model it names; None for a model by itself."""
    run = path.parent if model_folder(path) == path and path.name == BEST else path
    return run / RECIPE if (run / RECIPE).is_file() else None


def load(path: Path, device: str = "auto") -> tuple[AnyModel, Vocabulary]:
    """The model of a run or folder, and the words its ids mean."""
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


def expect_sequences(model: AnyModel, what: str) -> SequenceModel[Any, Any, Any]:
    """The model, if it goes from left to right; `UnsupportedError` for a grammar."""
    if not isinstance(model, SequenceModel):
        raise UnsupportedError(
            f'rankfold {what} is for models of sequences, but "{model.config.family}" is a family of grammars.\n'
            "  Of a grammar ask rankfold parse, score, sample, predict, evaluate, explain."
        )
    return model


def find_device(name: str) -> str:
    """The device that "auto" stands for; "cuda" only where there is one."""
    return str(chosen_device(name, "--device"))


def known_ids(words: Sequence[str], vocabulary: Vocabulary) -> list[int]:
    """The ids of the beginning of a sentence; `DataError` for a word the model does not know."""
    for word in words:
        if not vocabulary.knows(word):
            raise DataError(
                f"{word!r} is not among the {len(vocabulary):,} words of the model.\n"
                "  Write <unk> where an unknown word is meant."
            )
    ids = vocabulary.encode(words)
    return ids[:-1] if vocabulary.ends else ids


def expect_memory(model: AnyModel, lengths: Sequence[int], where: str | Sequence[str], *, outside: bool) -> None:
    """Raise on a sentence that a grammar has no memory for, before anything is computed.

    `lengths`: words of each, by the number of its line, of which `where` is the beginning, or with the place of each;
    `outside`: whether an outside pass follows the inside one. Memory grows with the square of a length, so one line may
    take all.
    """
    memory = available(model.device.type)

    def needed(width: int) -> int:
        plan = model.plan(1, width, model.device.type).best
        return width * (plan.token_bytes if outside else plan.eval_token_bytes)

    longest = max(lengths, default=0)
    if memory is None or longest < 2 or needed(longest) <= memory:
        return
    fitting = 1 + bisect_right(range(2, longest), memory, key=needed)
    at = lengths.index(longest)
    place = f"{where} {at + 1}" if isinstance(where, str) else where[at]
    raise DataError(
        f"{place}: a sentence of {longest:,} words needs {needed(longest) / GIB:.3g} GiB, "
        f"but {model.device.type} has {memory / GIB:.3g} GiB.\n"
        f"  At most {fitting:,} words fit: part it, or leave it out."
    )


def tell_unknown(unknown: Mapping[str, int], vocabulary: Vocabulary) -> None:
    """Say on standard error which words were counted as <unk>, the most frequent first."""
    if not unknown:
        return
    ordered = sorted(unknown.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{word} ({count:,})" for word, count in ordered[:NUM_SHOWN])
    more = f" and {len(ordered) - NUM_SHOWN:,} more" if len(ordered) > NUM_SHOWN else ""
    say(f"words not in the vocabulary, counted as <unk>: {sum(unknown.values()):,}, of them {shown}{more}")
    if not vocabulary.has_unk_mass:
        say("warning: the training text held no <unk>, so unknown words have no trained probability")


def say(line: str) -> None:
    """One line for a person, on standard error."""
    print(line, file=sys.stderr, flush=True)
