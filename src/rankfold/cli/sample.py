"""`rankfold sample`: sentences with their trees, or recordings with their states, drawn from a model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from rankfold.analysis.segmentation import segments_of
from rankfold.cli.load import add_model, holds_frames, load_frames, load_words, tell_unknown
from rankfold.cli.output import printable, say, to_json
from rankfold.data.vocab import Vocabulary
from rankfold.decoding.generate import WordChoice
from rankfold.errors import DataError, DomainError, UnsupportedError, expect_absent, quantity
from rankfold.models.catalog import AnyModel
from rankfold.models.parsing import draw_trees
from rankfold.models.strings import generate, seeded, split_line, word_choice

DESCRIPTION = (
    "Print sentences drawn from a model, exactly and independently; the same for the same seed. --no-unk, --top-k and "
    "--temperature change, in this order, the distribution that each word is drawn from, which is renormalised: the "
    "probability of a word given all words before it, <eos> among them; of a grammar that of a word given its symbol, "
    "and trees stay as they are. Of a model of frames: recordings of --max-length frames, a line of states and their "
    "durations each."
)
EXAMPLE = """\
example:
  rankfold sample runs/small --num 3
  rankfold sample runs/small --prefix "the company" --seed 7 --json
  rankfold sample runs/small --temperature 0.7 --top-k 50 --no-unk
  rankfold sample runs/grammar --num 3 --trees
  rankfold sample runs/walks --num 10 --max-length 200 --out drawn.npz"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--num", type=int, default=5, help="how many (default: 5)")
    parser.add_argument("--seed", type=int, default=1, help="of the draws (default: 1)")
    parser.add_argument("--prefix", default="", metavar="WORDS", help="how each sentence begins")
    parser.add_argument(
        "--max-length", type=int, default=100, metavar="N", help="words after the prefix at most (default: 100)"
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=1.0,
        metavar="T",
        help="draw words from their probabilities to the power of 1/T: below 1 likelier ones, above 1 more even ones",
    )
    parser.add_argument("--top-k", type=int, metavar="K", help="draw among the K likeliest words alone")
    parser.add_argument("--no-unk", action="store_true", help="never draw <unk>")
    parser.add_argument("--trees", action="store_true", help="grammars: print the trees that made the sentences")
    parser.add_argument("--out", type=Path, metavar="FILE", help="models of frames: save features and states as .npz")


def run(arguments: argparse.Namespace) -> int:
    """Print the sentences, or recordings."""
    if holds_frames(arguments.folder):
        return _run_frames(arguments)
    if arguments.out is not None:
        raise UnsupportedError("--out is for models of frames: sentences are printed.")
    model, vocabulary = load_words(arguments.folder, arguments.device)
    if model.config.data == "sentences":
        return _run_grammar(arguments, model, vocabulary)
    if arguments.trees:
        raise UnsupportedError(f'--trees is for grammars, but this model is of the family "{model.config.family}".')
    prefix = split_line(arguments.prefix, vocabulary)
    tell_unknown([prefix], vocabulary)
    generator, choice = seeded(model, arguments.seed), _choice(arguments)
    drawn = generate(
        model, arguments.num, prefix=prefix, max_length=arguments.max_length, choice=choice, generator=generator
    )
    cut = sum(not sentence.ended for sentence in drawn)
    if cut:
        say(f"cut at --max-length {arguments.max_length}: {cut} of {quantity(len(drawn), 'sentence')}")
    if arguments.json:
        print(to_json({"prefix": prefix, "seed": arguments.seed, "sentences": [x._asdict() for x in drawn]}, indent=2))
    else:
        print("\n".join(printable(vocabulary.tokenizer.detokenize(sentence.words)) for sentence in drawn))
    return 0


def _choice(arguments: argparse.Namespace) -> WordChoice:
    return word_choice(arguments.temperature, arguments.top_k, no_unk=arguments.no_unk)


def _run_grammar(arguments: argparse.Namespace, model: AnyModel, vocabulary: Vocabulary) -> int:
    if arguments.prefix:
        raise UnsupportedError("--prefix is for models of sequences: a grammar makes a sentence from its root.")
    generator = seeded(model, arguments.seed)
    drawn = draw_trees(
        model, arguments.num, max_length=arguments.max_length, choice=_choice(arguments), generator=generator
    )
    if drawn.rejected:
        say(f"left out: {quantity(drawn.rejected, 'drawn sentence')} of more than {arguments.max_length} words")
    if arguments.json:
        sentences = [{"words": words, "tree": str(tree)} for words, tree in zip(drawn.words, drawn.trees, strict=True)]
        print(to_json({"seed": arguments.seed, "rejected": drawn.rejected, "sentences": sentences}, indent=2))
    else:
        lines = map(str, drawn.trees) if arguments.trees else map(vocabulary.tokenizer.detokenize, drawn.words)
        print("\n".join(map(printable, lines)))
    return 0


def _run_frames(arguments: argparse.Namespace) -> int:
    if arguments.prefix or arguments.trees:
        raise UnsupportedError("--prefix and --trees are for models of words, but this is one of frames.")
    if _choice(arguments).changes:
        raise UnsupportedError("--temperature, --top-k and --no-unk choose words, but this is a model of frames.")
    if arguments.out is not None:
        expect_npz(arguments.out)  # before the work
    drawn = sample_recordings(
        arguments.folder, arguments.num, length=arguments.max_length, seed=arguments.seed, device=arguments.device
    )
    if arguments.out is not None:
        say(f"wrote {save_recordings(drawn, arguments.out)}")
        if drawn["as_prepared"]:
            say(
                "its features are as the model sees them, smoothed and scaled: this run would prepare them once more; "
                "another trains on them with data.standardise=none data.smooth=1"
            )
    print(to_json(plain(drawn)) if arguments.json else recordings_text(drawn))
    return 0


def sample_recordings(
    path: Path, num: int = 5, *, length: int = 100, seed: int = 1, device: str = "auto"
) -> dict[str, Any]:
    """Features "t f" in the units of the training set (where that has one scale) and states "t" of each recording."""
    if num < 1 or length < 1:
        raise DomainError(f"--num is {num} and --max-length {length}, but both must be at least 1.")
    model, space = load_frames(path, device)
    generator = seeded(model, seed)
    drawn = model.sample(length, num, generator=generator)
    features = [space.undo(x.cpu().numpy()) for x, _ in drawn]
    states = [z.cpu().numpy() // space.parts for _, z in drawn]
    return {
        "seed": seed,
        "label_names": None if not space.labelled else space.label_names,
        "as_prepared": space.standardise == "recording" or space.smooth > 1,
        "recordings": [{"features": x, "states": z} for x, z in zip(features, states, strict=True)],
    }


def expect_npz(path: Path) -> None:
    """Raise unless recordings can be written there: as a .npz, where nothing is yet."""
    if path.suffix != ".npz":
        raise DataError(f"--out is {path}, but recordings are written as .npz.")
    expect_absent(path)


def save_recordings(drawn: dict[str, Any], path: Path) -> Path:
    """Write them as a .npz that `rankfold train` and `segment` read, states for labels; no file is written over."""
    expect_npz(path)
    rows = drawn["recordings"]
    features = [x["features"] if x["features"].ndim == 2 else x["features"][:, None] for x in rows]
    np.savez(
        path,
        features=np.concatenate(features),
        labels=np.concatenate([row["states"] for row in rows]),
        lengths=np.array([len(x) for x in features]),
    )
    return path


def plain(drawn: dict[str, Any]) -> dict[str, Any]:
    """The same as lists."""
    rows = [{name: x.tolist() for name, x in row.items()} for row in drawn["recordings"]]
    return {**drawn, "recordings": rows}


def recordings_text(drawn: dict[str, Any]) -> str:
    """A line for each recording: its states and how many frames each lasts."""
    names = drawn["label_names"]

    def name(state: int) -> str:
        return names[state] if names is not None and state < len(names) else str(state)

    return "\n".join(
        " ".join(f"{name(s.label)}:{s.end - s.start}" for s in segments_of(row["states"]))
        for row in drawn["recordings"]
    )
