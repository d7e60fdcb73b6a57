"""`rankfold demo`: a language model of 2,048 states on Python's docstrings, or a grammar induced from sentences.

The perplexity of the first is shown next to n-gram models of the same text, with what its states say, sampled sentences
and a picture; the trees of the second next to the trees that made the sentences, which have no part in its choice.
"""

from __future__ import annotations

import argparse
import os
import sys
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch

from rankfold.analysis.bracketing import BracketScores, evaluate_brackets
from rankfold.analysis.hidden_chain import HiddenChain
from rankfold.analysis.named_states import most_used
from rankfold.analysis.ngrams import baselines
from rankfold.analysis.sentence_states import text_use
from rankfold.analysis.state_profiles import Use
from rankfold.analysis.states import effective_number, top_words
from rankfold.cli import explore
from rankfold.cli.evaluate_trees import baselines as tree_baselines
from rankfold.cli.output import to_json
from rankfold.cli.train import add_settings
from rankfold.data.brackets import parse_tree, read_trees
from rankfold.data.demo import write_corpus, write_toy_corpus
from rankfold.data.trees import Tree
from rankfold.errors import DataError
from rankfold.explore.bundle import page, write_page
from rankfold.models import load_model
from rankfold.models.config import PERPLEXITY, Family
from rankfold.models.parsing import parse
from rankfold.plots.learning import plot_learning
from rankfold.plots.picture import require_matplotlib
from rankfold.plots.trees import save_tree, tree_text
from rankfold.run_report.training import train
from rankfold.training.corpus import read_corpus
from rankfold.training.loop import Result
from rankfold.training.recipes import load_recipe
from rankfold.training.report import Reporter, reporter
from rankfold.training.run_dir import BEST, METRICS, read_metrics

NUM_STATES_SHOWN, NUM_SENTENCES = 10, 5
NUM_TREES_SHOWN, SHOWN_WORDS = 3, (7, 12)  # trees shown, and the fewest and most words of each
ORDERS = (2, 5)  # of the Kneser-Ney models
DESCRIPTION = (
    "Train an HMM of 2,048 states on the docstrings of the installed Python's standard library, split by module; "
    "print its perplexity next to a unigram and Kneser-Ney models of order 2 and 5, what its states say, and sampled "
    "sentences. With --grammar: induce a grammar from sentences whose trees are known, and compare its trees with "
    "those, next to left-branching, right-branching and random trees."
)
EXAMPLE = "example:\n  rankfold demo --out rankfold-demo\n  rankfold demo --grammar --out rankfold-demo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("rankfold-demo"), help="folder for text, runs and pictures")
    add_settings(parser)
    parser.add_argument(
        "--grammar", action="store_true", help="induce a grammar from sentences instead, and show its trees"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the sampled sentences (default: 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Train, and print the result; 130 if it was interrupted."""
    if arguments.grammar:
        result = demo_grammar(arguments.out, settings=arguments.settings, report=reporter())
    else:
        result = demo(arguments.out, settings=arguments.settings, seed=arguments.seed, report=reporter())
    if arguments.json:
        print(to_json(result, indent=2))
    elif not result["finished"]:
        print(f"interrupted; the run is in {result['run']}")
    else:
        print(grammar_text(result) if arguments.grammar else _text(result))
        if on_desktop():
            webbrowser.open(Path(result["page"]).resolve().as_uri())
    return 0 if result["finished"] else 130


def on_desktop() -> bool:
    """Whether a person at a terminal has a screen for a browser."""
    screen = sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    return screen and sys.stdin.isatty() and sys.stdout.isatty()


def demo(
    out: Path = Path("rankfold-demo"), *, settings: list[str], seed: int = 1, report: Reporter | None = None
) -> dict[str, Any]:
    """The demonstration as plain data; each call trains into a folder of its own, `run-1`, `run-2`, ..."""
    require_matplotlib()
    report = report or Reporter()
    config = load_recipe("demo-text", settings)
    model_config: Any = config.model
    if model_config.data != "text":
        raise DataError(
            f"model.family is {model_config.family}, but the demo shows what states say: one of "
            f"{', '.join(get_args(Family))} was expected."
        )
    folder = out / "corpus"
    write_corpus(folder)
    corpus = read_corpus(folder, config.data)
    assert corpus.test is not None  # write_corpus writes all three splits
    num_words, test = len(corpus.vocabulary), corpus.test.sentences
    likelihoods = baselines(corpus.train.sentences, test, num_words, orders=ORDERS)
    others = {name: PERPLEXITY(value, corpus.test.num_tokens) for name, value in likelihoods.items()}
    outcome = train(config, folder, _next_run(out, "run"), report=report)
    result: dict[str, Any] = {"finished": outcome.finished, "run": str(outcome.run)}
    if not outcome.finished:
        return result
    assert outcome.test is not None
    model = load_model(outcome.run / BEST)
    chain = HiddenChain(model)
    use = text_use(chain, corpus.valid.sentences)
    title = f"{model_config.num_states:,} states on {corpus.train.num_tokens:,} tokens of Python's docstrings"
    metrics = read_metrics(outcome.run / METRICS)
    file = outcome.run / "learning.png"
    picture = plot_learning(metrics, file, usage=use.share.tolist(), baselines=others, title=title)
    return result | {
        "train_tokens": corpus.train.num_tokens,
        "test_tokens": outcome.test.tokens,
        "vocabulary": num_words,
        "family": model_config.family,
        "num_states": model_config.num_states,
        "perplexity": {**others, model_config.family: outcome.test.perplexity},
        "effective_states": effective_number(use.share),
        "states": _top_states(chain, use),
        "samples": model.generate(NUM_SENTENCES, max_length=40, seed=seed),
        "picture": str(picture),
        "seconds": outcome.seconds,
        "page": str(_page(outcome.run, report)),
    }


def _page(run: Path, report: Reporter, trees: Path | None = None) -> Path:
    """The page on which a run can be explored in a browser."""
    report.say("writing the page to explore it in a browser")
    bundle, _ = explore.build(run, trees=trees)
    write_page(run / explore.PAGE, page(bundle))
    return run / explore.PAGE


def _next_run(out: Path, name: str) -> Path:
    """The first of name-1, name-2, ... that does not exist: no run is ever written over."""
    number = 1
    while (out / f"{name}-{number}").exists():
        number += 1
    return out / f"{name}-{number}"


def _top_states(chain: HiddenChain, use: Use) -> list[dict[str, Any]]:
    """The most used states of the validation text, by their posterior, and their most probable words.

    Of states with the same most probable word the most used alone: dozens end sentences.
    """
    assert chain.model.vocabulary is not None
    found: dict[str, dict[str, Any]] = {}
    for state in most_used(use, chain.num_values):
        (words,) = top_words(chain.word_rows(torch.tensor([state])).log(), chain.model.vocabulary.words, num=7)
        said = [word for word, _ in words]
        found.setdefault(said[0], {"state": state, "share": float(use.share[state]), "words": said})
        if len(found) == NUM_STATES_SHOWN:
            break
    return list(found.values())


def _text(result: dict[str, Any]) -> str:
    names = {result["family"]: f"this model, an HMM ({result['family']})"}
    lines = [
        f"{result['num_states']:,} hidden states, trained on {result['train_tokens']:,} "
        f"tokens of Python's docstrings ({result['vocabulary']:,} words) in {result['seconds']:.0f} s",
        "",
        f"test perplexity ({result['test_tokens']:,} tokens of other modules, <eos> counted)",
        *(f"  {names.get(name, name):<32}{value:8.1f}" for name, value in result["perplexity"].items()),
        "",
        f"the most used states, one for each most probable word (as many as {result['effective_states']:.0f} equally "
        "used ones do the work)",
        *(f"  {use['state']:>5} {use['share']:6.1%}  {' '.join(use['words'])}" for use in result["states"]),
        "",
        "sampled sentences",
        *(f"  {sentence}" for sentence in result["samples"]),
        "",
        f"picture  {result['picture']}",
        f"run      {result['run']}",
        *_pointer(result),
    ]
    return "\n".join(lines)


def _pointer(result: dict[str, Any]) -> list[str]:
    """The last lines: where to look next."""
    return ["", f"explore it in a browser: {result['page']}"]


def demo_grammar(
    out: Path = Path("rankfold-demo"), *, settings: list[str], num_runs: int = 2, report: Reporter | None = None
) -> dict[str, Any]:
    """The demonstration as plain data; each call trains into folders of its own, `grammar-1`, `grammar-2`, ..."""
    report = report or Reporter()
    config = load_recipe("demo-grammar", settings)
    folder = out / "toy-corpus"
    write_toy_corpus(folder)
    runs: list[Result] = []
    for i in range(num_runs):
        seeded = replace(config, train=replace(config.train, seed=config.train.seed + i))
        report.say(f"grammar {i + 1} of {num_runs}, from seed {seeded.train.seed}")
        runs.append(train(seeded, folder, _next_run(out, "grammar"), report=report))
        if not runs[-1].finished:
            return {"finished": False, "run": str(runs[-1].run)}
    best = min(runs, key=lambda run: run.best_valid_perplexity)
    model = load_model(best.run / BEST)
    gold = read_trees(folder / "test.trees").trees
    found = [parsed.tree for parsed in parse(model, [tree.words for tree in gold])]
    shown = _choose_sentences(gold)
    return {
        "finished": True,
        "run": str(best.run),
        "family": config.model.family,
        "valid_perplexity": {str(run.run): run.best_valid_perplexity for run in runs},
        "sentences": len(gold),
        "induced": _scores(evaluate_brackets(found, gold)),
        **{name: _scores(found) for name, found in _other_trees(gold).items()},
        "trees": [{"true": str(gold[i]), "induced": str(found[i])} for i in shown],
        "pictures": [
            str(save_tree(gold[i], best.run / f"tree-{k}.svg", predicted=found[i], title="above: true, below: induced"))
            for k, i in enumerate(shown, 1)
        ],
        "seconds": sum(run.seconds for run in runs),
        "page": str(_page(best.run, report, folder / "test.trees")),
    }


def _other_trees(gold: list[Tree]) -> dict[str, BracketScores]:
    """Scores of trees that need no grammar."""
    found = tree_baselines(gold)
    names = {"right_branching": "right-branching", "left_branching": "left-branching", "random": "random"}
    return {key: found[name] for key, name in names.items()}


def _choose_sentences(gold: list[Tree]) -> list[int]:
    """Sentences of middle length: the first ones, so that neither good nor bad ones are picked."""
    shortest, longest = SHOWN_WORDS
    fitting = [i for i, tree in enumerate(gold) if shortest <= len(tree.words) <= longest]
    return (fitting or list(range(len(gold))))[:NUM_TREES_SHOWN]


def _scores(scores: BracketScores) -> dict[str, float]:
    return {"sentence_uf1": scores.uf1.sentence, "corpus_uf1": scores.uf1.corpus, "sentence_kim": scores.kim.sentence}


def grammar_text(result: dict[str, Any]) -> str:
    """The grammar, its scores and a few of its trees as text."""
    rows = {"induced grammar": "induced", "right-branching trees": "right_branching"}
    rows |= {"random trees": "random", "left-branching trees": "left_branching"}
    perplexities = ", ".join(f"{value:.2f}" for value in result["valid_perplexity"].values())
    lines = [
        f"a grammar ({result['family']}) induced from sentences without trees in {result['seconds']:.0f} s; validation "
        f"perplexities {perplexities}: the lowest is shown",
        "",
        f"brackets of {result['sentences']} new sentences, F1 in percent   sentence    corpus",
        *(
            f"  {name:<47}{100 * result[key]['sentence_uf1']:8.1f}  {100 * result[key]['corpus_uf1']:8.1f}"
            for name, key in rows.items()
        ),
    ]
    for trees in result["trees"]:
        true, found = parse_tree(trees["true"]), parse_tree(trees["induced"])
        lines += ["", " ".join(true.words), *_side_by_side(tree_text(true), tree_text(found, against=true))]
    lines += ["", "* brackets that the true tree (left) has not", ""]
    return "\n".join(
        lines + [f"picture  {path}" for path in result["pictures"]] + [f"run      {result['run']}", *_pointer(result)]
    )


def _side_by_side(left: str, right: str) -> list[str]:
    one, other = left.splitlines(), right.splitlines()
    width = max(map(len, one)) + 4
    rows = max(len(one), len(other))
    one, other = one + [""] * (rows - len(one)), other + [""] * (rows - len(other))
    return [f"  {a:<{width}}{b}".rstrip() for a, b in zip(one, other, strict=True)]
