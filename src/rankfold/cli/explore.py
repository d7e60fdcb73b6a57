"""`rankfold explore`: a model in a browser, as one page that needs no network, or from a server on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankfold.analysis.decoded_frames import answer_recordings, best_states, num_parts, state_posteriors
from rankfold.analysis.hidden_chain import HiddenChain
from rankfold.cli.baselines import run_data
from rankfold.cli.load import (
    add_model,
    data_config,
    holds_frames,
    load_recordings,
    load_words,
    read_text,
    tell_unknown,
)
from rankfold.cli.output import say, to_json
from rankfold.data.batch import Batch
from rankfold.data.sources import left_out_text
from rankfold.data.text import find_split, holds_trees
from rankfold.data.vocab import Vocabulary
from rankfold.errors import DataError, DomainError
from rankfold.explore.bundle import Bundle, expect_page_or_absent, page, write_page
from rankfold.explore.chain_page import ChainPage, fitted
from rankfold.models.catalog import AnyModel
from rankfold.models.strings import generate, seeded
from rankfold.training.run_dir import model_folder

PAGE, LINES = "explore.html", "lines.txt"  # LINES: sentences next to a model that is inside the package
SENTENCES, PARSED, DRAWN = 20_000, 2_000, 500  # shown at most; of a grammar; drawn where there is no text
DESCRIPTION = (
    "Write one HTML file in which a model can be explored: a map of its states, every state's words and neighbours, "
    "sentences with their posterior states, patterns that recur; of a grammar its trees, of a model of frames its "
    "segments. The file holds everything and asks the network for nothing. With --serve the same page is served on "
    "this machine alone, and the model answers sentences that are typed."
)
EXAMPLE = """\
example:
  rankfold explore runs/small -o page.html
  rankfold explore runs/small --data valid.txt -o page.html
  rankfold explore runs/small --serve
  rankfold explore runs/grammar --trees test.trees -o trees.html
  rankfold explore runs/walks --data recordings.npz --split test -o walks.html"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument(
        "-o", "--out", type=Path, metavar="PAGE", help=f"the page to write (default: {PAGE} in the folder of RUN)"
    )
    parser.add_argument(
        "--data", type=Path, metavar="FILE", help="the text or recordings to show (default: the run's training data)"
    )
    parser.add_argument("--trees", type=Path, metavar="FILE", help="of a grammar: gold trees, whose words are shown")
    parser.add_argument("--split", help="which split, where recordings have splits")
    parser.add_argument(
        "--sentences",
        type=int,
        metavar="N",
        help=f"show at most so many (default: {SENTENCES:,}, of a grammar {PARSED:,})",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the map, and of drawn sentences")
    parser.add_argument("--serve", action="store_true", help="serve the page on this machine; Ctrl-C ends it")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="with --serve (default: a free one)")


def run(arguments: argparse.Namespace) -> int:
    """Write the page, or serve it."""
    if arguments.sentences is not None and arguments.sentences < 1:
        raise DomainError(f"--sentences is {arguments.sentences}, but a page shows at least 1.")
    if not 0 <= arguments.port < 2**16:
        raise DomainError(f"--port is {arguments.port}, but ports are 1 to 65535.")
    if arguments.serve and (arguments.out is not None or arguments.json):
        raise DataError("--serve writes no file: leave out -o and --json, or --serve.")
    model_folder(arguments.folder)  # raises before a page is looked for
    out = arguments.out
    if out is None:  # models inside the package have no folder to write to
        out = arguments.folder / PAGE if arguments.folder.is_dir() else Path(PAGE)
    if not arguments.serve:
        expect_page_or_absent(out)
    names = ("data", "trees", "split", "sentences", "seed", "device")
    bundle, answer = build(arguments.folder, **{name: getattr(arguments, name) for name in names})
    if arguments.serve:
        from rankfold.explore.serve import serve

        return serve(bundle, answer, port=arguments.port, say=say)
    text = page(bundle)
    write_page(out, text)
    meta = bundle.meta
    told = {
        "page": str(out),
        "bytes": len(text.encode()),
        **{k: v for k, v in meta.items() if k not in ("unknown", "labels")},
    }
    if arguments.json:
        print(to_json(told))
    else:
        print(f"{out}   {told['bytes'] / 1e6:.1f} MB; open it in a browser")
    return 0


def build(
    folder: Path,
    *,
    data: Path | None = None,
    trees: Path | None = None,
    split: str | None = None,
    sentences: int | None = None,
    seed: int = 0,
    device: str = "auto",
) -> tuple[Bundle, Any]:
    """The content of the page, and the function that answers typed sentences (None: there is none)."""
    if trees is not None and (holds_frames(folder) or data is not None):
        raise DataError("--trees are gold trees with their words, for a grammar: without --data.")
    if holds_frames(folder):
        return _frames(folder, data, split, device), None
    model, vocabulary = load_words(folder, device)
    grammar = model.config.data == "sentences"
    most = sentences or (PARSED if grammar else SENTENCES)
    about = {"title": folder.resolve().name, "family": model.config.family}
    if trees is not None and not grammar:
        raise DataError(f'--trees are for a grammar, but {folder} is of the family "{model.config.family}".')
    if trees is not None:
        from rankfold.cli.evaluate_trees import read_gold
        from rankfold.explore.grammar_page import GrammarPage

        grammar_page = GrammarPage(model)
        gold, _, left_out = read_gold([trees], "test", data_config(folder))
        if left_out:
            say(f"{trees}: left out {left_out_text(left_out)}")
        gold = gold[:most]
        about["text"] = trees.name
        return grammar_page.bundle(
            [list(tree.words) for tree in gold], gold=gold, about_text=about, say=say
        ), grammar_page.answer
    shown, told = _sentences(folder, model, vocabulary, data, most, seed)
    about |= told
    if grammar:
        from rankfold.explore.grammar_page import GrammarPage

        grammar_page = GrammarPage(model)
        return grammar_page.bundle(shown, about_text=about, say=say), grammar_page.answer
    if data is not None:  # of its own text a run has said it
        tell_unknown(shown, vocabulary)
    chain = ChainPage(HiddenChain(model), vocabulary)
    return fitted(chain.bundle(shown, about_text=about, seed=seed, say=say), say=say), chain.answer


def _frames(folder: Path, data: Path | None, split: str | None, device: str) -> Bundle:
    from rankfold.explore.frame_page import frame_bundle

    data = run_data(folder) if data is None else data
    if data is None:
        raise DataError(f"{folder} does not say what it was trained on.\n  Name recordings: --data FILE.")
    loaded = load_recordings(folder, data, split=split, device=device)
    model, frames = loaded.model, loaded.frames
    states = best_states(model, frames)

    def posterior(batch: Batch) -> list[Any]:
        return list(state_posteriors(model, batch))

    tables = answer_recordings(model, frames, posterior)
    certainty = [table[range(len(own)), own].numpy() for table, own in zip(tables, states, strict=True)]
    return frame_bundle(
        loaded.space,
        loaded.given,
        states,
        certainty,
        num_states=model.config.num_states // num_parts(model),
        about_text={"title": folder.resolve().name, "family": model.config.family, "text": data.name},
    )


def _sentences(
    folder: Path, model: AnyModel, vocabulary: Vocabulary, data: Path | None, most: int, seed: int
) -> tuple[list[Sequence[str]], dict[str, Any]]:
    """The sentences of `data`, of the run's training text, or drawn from the model; and where they are from."""
    own = model_folder(folder) / LINES
    noted = data if data is not None else own if own.is_file() else run_data(folder)
    if noted is not None and (data is not None or noted.exists() or noted.parent.exists()):
        trees = model.config.data == "sentences"
        path = noted if noted.is_file() else find_split(noted, "train", trees=trees)
        if trees and holds_trees(path):
            raise DataError(f"{path} is a file of trees by its name.\n  Show them as gold trees: --trees {path}")
        found: list[Sequence[str]] = list(read_text(path, vocabulary).sentences)
        if not found:
            raise DataError(f"{path}: no sentences; a page shows at least one.")
        chosen = spread(found, most)
        if len(chosen) < len(found):
            say(f"{path}: {len(chosen):,} of its {len(found):,} sentences are shown; --sentences N shows others")
        return chosen, {"text": path.name}
    say(f"{folder} does not say what it was trained on: the page shows sentences drawn from the model")
    drawn = generate(model, min(DRAWN, most), generator=seeded(model, seed))
    return [one.words for one in drawn if one.words], {"text": "drawn from the model", "generated": True}


def spread(sentences: list[Sequence[str]], num: int) -> list[Sequence[str]]:
    """At most `num` sentences, evenly spread over the text and in its order."""
    if len(sentences) <= num:
        return sentences
    return [sentences[i * len(sentences) // num] for i in range(num)]
