"""Training without a recipe, and on any text: a file of text is prepared into the run, and a recipe is chosen.

The choice is by the training tokens, the words seen twice or more, and the device. The run keeps the whole recipe in
recipe.toml.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rankfold.data.frame_files import SUFFIXES
from rankfold.data.prepare import Megabytes, prepare, read_prepared
from rankfold.data.raw_text import expect_texts
from rankfold.data.text import BOM, BROKEN_GZIP, begins_names, find_split, has_split, open_bytes
from rankfold.errors import DataError, quantity
from rankfold.training.config import Config
from rankfold.training.in_memory import frame_splits, is_in_memory, text_sources
from rankfold.training.recipes import run_config
from rankfold.training.recordings import read_splits
from rankfold.training.run_dir import RunDir
from rankfold.training.setup import choose_device

FOLDER = "data"  # of a run: the text it prepared
COUNTED = 30_000_000  # bytes: of longer texts words are not counted before a recipe is chosen
EPOCHS = 24  # of short texts at most: songs of 47,000 tokens are best after 13, licences of 48,000 later
SMALL, LARGE, FEW_WORDS = 20_000, 3_000_000, 300  # training tokens, and words of a vocabulary


class Choice(NamedTuple):
    """A recipe, settings on top of it, and a sentence that says why."""

    recipe: str
    settings: list[str]
    why: str


def resolve(
    recipe: Config | str | Path | None,
    data: Any,
    out: str | Path,
    settings: Sequence[str],
    say: Callable[[str], None],
    *,
    resume: bool = False,
    init_from: str | Path | None = None,
    device: str | None = None,
) -> tuple[Config, Any]:
    """The configuration of a run, and its data: a file of text is prepared, a recipe chosen where there is none."""
    given = recipe is not None or resume or init_from is not None
    config = None
    if given:  # mistakes in it are found before the text is read
        config = run_config(recipe, settings, out, resume=resume, init_from=init_from, device=device)
    of_words = config is None or config.model.measure.of_words
    if of_words and is_text_file(data):
        data = prepare_into_run(data, out, say, resume=resume)
    if config is None:
        choice = choose_recipe(data, choose_device(device or "auto").type)
        config = run_config(choice.recipe, [*choice.settings, *settings], out, device=device)
        say(choice.why + (f" With {', '.join(settings)} on top." if settings else ""))
    return config, data


def is_text_file(data: Any) -> bool:
    """Whether data are one file of text: no folder, no recordings, nothing in memory."""
    if is_in_memory(data) or Path(data).is_dir():
        return False
    return Path(data).suffix.lower() not in SUFFIXES and os.path.lexists(data)


def prepare_into_run(file: str | Path, out: str | Path, say: Callable[[str], None], *, resume: bool = False) -> Path:
    """The folder in the run that has the text of a file; prepared now, unless it is there already."""
    folder, file = Path(out) / FOLDER, Path(file)
    expect_texts([str(file)])
    known = read_prepared(folder) if folder.is_dir() else None
    if known is not None and known.get("sha256") == text_digest(file):
        return folder
    if known is not None or resume:
        raise DataError(
            f"{folder} holds {'another text' if known else 'no prepared text'}, not that of {file}.\n"
            "  Give the --data that the run was started with, or another --out."
        )
    with RunDir.create(out):  # raises where there is a run
        pass
    found = prepare([str(file)], folder, progress=Megabytes(f"{file}: read", say))
    say("\n  ".join([f"{file} is prepared in {folder}:", *found.lines()]))
    return folder


def text_digest(file: Path) -> str:
    """The sha256 of the text of a file, unpacked and without a byte order mark, as `prepared.json` has it."""
    digest = hashlib.sha256()
    try:
        with open_bytes(file, gzipped=file.suffix == ".gz") as stream:
            digest.update(stream.read(2**20).removeprefix(BOM))
            while block := stream.read(2**20):
                digest.update(block)
    except BROKEN_GZIP as error:
        raise DataError(f"{file}: the gzip data is damaged or ends early ({error}).") from None
    return digest.hexdigest()


def choose_recipe(data: Any, device: str) -> Choice:
    """The recipe for some data, on "cpu" or "cuda"."""
    if is_in_memory(data):
        held = next(iter(data.values())) if isinstance(data, dict) else data
        first = next(iter(held), None) if isinstance(held, list | tuple) else None
        if isinstance(first, str) or (isinstance(first, list | tuple) and first and isinstance(first[0], str)):
            return for_text(*_count(text_sources(data)["train"]), device)
        return for_frames(frame_splits(data)["train"].features, 0)
    path = Path(data)
    if path.is_dir() or begins_names(path):
        if has_split(path, "train"):
            return for_text(*_count_folder(path), device)
        if has_split(path, "train", trees=True):
            raise DataError(
                f"{path} holds trees, for which no recipe is chosen.\n"
                "  Give one of a grammar, such as --recipe small-tnpcfg; rankfold train --list shows others."
            )
    train = read_splits(path)["train"]
    return for_frames(train.features, train.num_labels if train.labels is not None else 0)


def _count_folder(path: Path) -> tuple[int, int | None]:
    """The training tokens, and the words seen twice or more; of a large text about, and None."""
    train = find_split(path, "train")
    size = train.stat().st_size * (3 if train.suffix == ".gz" else 1)
    if size > COUNTED:
        known = read_prepared(path) if path.is_dir() else None
        return known["tokens"]["train"] if known else size // 5, None
    with open_bytes(train, gzipped=train.suffix == ".gz") as lines:
        try:
            return _count(line.split() for line in lines)
        except BROKEN_GZIP as error:
            raise DataError(f"{train}: the gzip data is damaged or ends early ({error}).") from None


def _count(sentences: Iterable[Sequence[str | bytes]]) -> tuple[int, int]:
    counts: Counter[str | bytes] = Counter()
    for words in sentences:
        counts.update(words)
    return counts.total(), sum(count > 1 for count in counts.values())


def for_text(tokens: int, words: int | None, device: str) -> Choice:
    """The recipe for so many training tokens and words; None: more than any vocabulary will hold.

    Block-sparse HMMs learn most in a given time: with these sizes 1 MB of an encyclopaedia has test perplexity 105.7
    after three minutes of one core, with Kneser-Ney of order 2 127.7, of order 5 104.5. They need words to put into
    clusters; characters and short texts get a low-rank HMM.
    """
    if words == 0:
        raise DataError(
            f"no word stands twice in the {tokens:,} training tokens: all would count as <unk>.\n"
            "  Give a longer text, or --recipe small-lhmm --set data.min_count=1."
        )
    said = f"{tokens:,} training tokens" + ("" if words is None else f" and {words:,} words seen twice or more")
    large = tokens >= LARGE
    if tokens < SMALL or (words is not None and words < FEW_WORDS):
        states, rank, updates = (256, 32, 400) if tokens < SMALL else (1024, 128, 1500)
        settings = [f"model.num_states={states}", f"model.rank={rank}", "model.dim=64", "model.band=0"]
        recipe, kind, batch = "small-lhmm", "a low-rank HMM", 512 if tokens < SMALL else 2048
        time = ", less than a minute on two cores" if tokens < SMALL else ""
    else:
        states, clusters, dim = (4096, 128, 128) if large else (2048, 64, 64)
        updates, batch = (3000, 4096) if large else (1200, 2048)
        if not large:
            updates = min(updates, 100 * max(1, round(EPOCHS * tokens / batch / 100)))
        if device == "cuda":
            states, clusters, dim, updates = 8192, 128, 128, 2 * updates
        settings = [f"model.num_states={states}", f"model.num_clusters={clusters}", f"model.dim={dim}", "train.lr=1e-2"]
        settings += ["data.max_vocabulary=10000"] if large else ["data.max_vocabulary=20000"]
        recipe, kind = "small-block", "a block-sparse HMM"
        time = "" if large else ", up to three minutes on two cores"
    settings += [f"data.tokens={batch}", "data.min_count=2", f"train.updates={updates}"]
    settings += [f"train.evaluate_every={updates // (4 if large else 8)}", f"train.checkpoint_every={updates // 4}"]
    time = ", on this GPU" if device == "cuda" else time
    return Choice(
        recipe,
        settings,
        f"no recipe was given; for {said}: {kind} of {states:,} states, {updates:,} updates of {batch:,} tokens{time}. "
        f"This is {recipe} with other sizes; recipe.toml of the run has all of them, --recipe takes another.",
    )


def for_frames(features: Sequence[np.ndarray[Any, Any]], num_labels: int) -> Choice:
    """The recipe for recordings: EM of a Gaussian HMM, a state per label or five; of zeros and ones small-music."""
    num = sum(map(len, features))
    said = f"no recipe was given; for {quantity(len(features), 'recording')} of {quantity(num, 'frame')}"
    if all(np.isin(x[~np.isnan(x)], (0, 1)).all() for x in features) and features[0].shape[-1] > 1:
        return Choice("small-music", [], f"{said}, all of zeros and ones: small-music. --recipe takes another.")
    states = max(num_labels, 2) if num_labels else 5
    scale = "recording" if len(features) > 1 else "train"
    settings = [f"model.num_states={states}", "data.smooth=1", f"data.standardise={scale}"]
    why = f"the {num_labels} labels" if num_labels else "no labels"
    return Choice(
        "segment-hmm",
        settings,
        f"{said} and {why}: segment-hmm, a Gaussian HMM of {states} states, 30 steps of EM, with "
        f"{' '.join(settings)}. --set changes them, --recipe takes another.",
    )
