"""`rankfold sample`: sentences drawn from a model.

Read next: `decoding/generate.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rankfold.analysis.drawing import draw_sentences
from rankfold.cli.frames_of import is_frames
from rankfold.cli.model_of import add_model, expect_sequences, known_ids, load, say
from rankfold.cli.output import to_json
from rankfold.cli.sample_frames import expect_npz, plain, recordings_text, sample_recordings, save_recordings
from rankfold.data.vocab import Vocabulary
from rankfold.errors import DomainError, UnsupportedError
from rankfold.models.catalog import AnyModel
from rankfold.models.grammar_config import GrammarConfig

EXAMPLE = """\
example:
  rankfold sample runs/small --num 3
  rankfold sample runs/small --prefix "the company" --seed 7 --json
  rankfold sample runs/grammar --num 3 --trees
  rankfold sample runs/walks --num 10 --max-length 200 --out drawn.npz"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Print sentences drawn from a model, exactly and independently; the same for the same seed. Of a model of "
        "frames: recordings of --max-length frames, a line of states and their durations each."
    )
    parser.epilog = EXAMPLE
    add_model(parser)
    parser.add_argument("--num", type=int, default=5, help="how many (default: 5)")
    parser.add_argument("--seed", type=int, default=1, help="of the draws (default: 1)")
    parser.add_argument("--prefix", default="", metavar="WORDS", help="how each sentence begins")
    parser.add_argument(
        "--max-length", type=int, default=100, metavar="N", help="words after the prefix at most (default: 100)"
    )
    parser.add_argument("--trees", action="store_true", help="grammars: print the trees that made the sentences")
    parser.add_argument("--out", type=Path, metavar="FILE", help="models of frames: save features and states as .npz")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the sentences, or recordings."""
    _check_seed(arguments.seed)
    if is_frames(arguments.folder):
        return _run_frames(arguments)
    if arguments.out is not None:
        raise UnsupportedError("--out is for models of frames: sentences are printed.")
    model, vocabulary = load(arguments.folder, arguments.device)
    prefix = arguments.prefix.split()
    if isinstance(model.config, GrammarConfig):
        return _run_grammar(arguments, model)
    if arguments.trees:
        raise UnsupportedError(f'--trees is for grammars, but this model is of the family "{model.config.family}".')
    drawn = sample(
        model, vocabulary, arguments.num, seed=arguments.seed, prefix=prefix, max_length=arguments.max_length
    )
    cut = sum(not sentence["ended"] for sentence in drawn)
    if cut:
        say(f"{cut} of {len(drawn)} sentences were cut at --max-length {arguments.max_length}")
    if arguments.json:
        print(to_json({"prefix": prefix, "seed": arguments.seed, "sentences": drawn}, indent=2))
    else:
        print("\n".join(" ".join(sentence["words"]) for sentence in drawn))
    return 0


def _run_frames(arguments: argparse.Namespace) -> int:
    if arguments.prefix or arguments.trees:
        raise UnsupportedError("--prefix and --trees are for models of words, but this is one of frames.")
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


def _run_grammar(arguments: argparse.Namespace, model: AnyModel) -> int:
    if arguments.prefix:
        raise UnsupportedError("--prefix is for models of sequences: a grammar makes a sentence from its root.")
    _check_seed(arguments.seed)
    generator = torch.Generator(device=model.device).manual_seed(arguments.seed)
    drawn = draw_sentences(model, arguments.num, max_length=arguments.max_length, generator=generator)
    if drawn.rejected:
        say(f"{drawn.rejected:,} sentences of more than {arguments.max_length} words were drawn and left out")
    if arguments.json:
        sentences = [{"words": words, "tree": str(tree)} for words, tree in zip(drawn.words, drawn.trees, strict=True)]
        print(to_json({"seed": arguments.seed, "rejected": drawn.rejected, "sentences": sentences}, indent=2))
    else:
        print("\n".join(map(str, drawn.trees) if arguments.trees else map(" ".join, drawn.words)))
    return 0


def _check_seed(seed: int) -> None:
    if not 0 <= seed < 2**63:
        raise DomainError(f"seed is {seed}, but must be at least 0 and below 2**63.")


def sample(
    model: AnyModel,
    vocabulary: Vocabulary,
    num: int = 5,
    *,
    seed: int = 1,
    prefix: Sequence[str] = (),
    max_length: int = 100,
) -> list[dict[str, Any]]:
    """The words of each sentence, prefix included, and whether it ended before `max_length` words of its own."""
    _check_seed(seed)
    ids = known_ids(prefix, vocabulary)
    model = expect_sequences(model, "sample")
    generator = torch.Generator(device=model.device).manual_seed(seed)
    rows = model.generate(num, prefix=ids, max_length=max_length, generator=generator)
    return [{"words": [*prefix, *vocabulary.decode(row)], "ended": len(row) < max_length} for row in rows]
