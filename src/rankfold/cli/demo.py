"""`rankfold demo`: a language model of 1,024 states on Python's docstrings, or a grammar induced from sentences.

The perplexity of the first is shown next to two baselines, with what its states say, sampled sentences and a picture;
the trees of the second next to the trees that made the sentences, which have no part in the choice of the grammar.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rankfold.analysis.bracketing import BracketScores, evaluate_brackets, right_branching
from rankfold.analysis.ngrams import KneserNey, Unigram
from rankfold.analysis.states import UsageSummary, state_usage, top_words
from rankfold.cli.output import to_json
from rankfold.cli.train import add_settings
from rankfold.data.batch import length_batches
from rankfold.data.brackets import parse_tree, read_trees
from rankfold.data.demo import write_corpus, write_toy_corpus
from rankfold.data.trees import Tree
from rankfold.errors import DataError
from rankfold.models import load_model
from rankfold.models.catalog import AnyModel
from rankfold.models.config import HMMS
from rankfold.models.parsing import parse
from rankfold.plots.learning import plot_learning
from rankfold.plots.picture import require_matplotlib
from rankfold.plots.trees import save_tree, tree_text
from rankfold.run_report.training import train
from rankfold.training.corpus import Corpus, read_corpus
from rankfold.training.loop import Result
from rankfold.training.recipes import load_recipe
from rankfold.training.report import Reporter, reporter
from rankfold.training.run_dir import BEST, METRICS, read_metrics

NUM_STATES_SHOWN, NUM_SENTENCES = 10, 5
NUM_TREES_SHOWN, SHOWN_WORDS = 3, (7, 12)  # trees shown, and the fewest and most words of each
DESCRIPTION = (
    "Train a low-rank HMM of 1,024 states on the docstrings of the installed Python's standard library; print "
    "its perplexity next to a unigram and a Kneser-Ney bigram, what its states say, and sampled sentences. With "
    "--grammar: induce a grammar from sentences whose trees are known, and compare its trees with those."
)
EXAMPLE = "example:\n  rankfold demo --out rankfold-demo\n  rankfold demo --grammar --out rankfold-demo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
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
    return 0 if result["finished"] else 130


def demo(
    out: Path = Path("rankfold-demo"), *, settings: list[str], seed: int = 1, report: Reporter | None = None
) -> dict[str, Any]:
    """The demonstration as plain data; each call trains into a folder of its own, `run-1`, `run-2`, ..."""
    require_matplotlib()
    report = report or Reporter()
    config = load_recipe("demo", settings)
    if config.model.family not in HMMS:
        raise DataError(
            f"the demo shows what states say of all words: set model.family to {', '.join(HMMS[:-1])} or {HMMS[-1]}."
        )
    folder = out / "corpus"
    write_corpus(folder)
    corpus = read_corpus(folder, config.data)
    assert corpus.test is not None  # write_corpus writes all three splits
    num_words, test = len(corpus.vocabulary), corpus.test.sentences
    baselines = {
        "unigram": Unigram.fit(corpus.train.sentences, num_words).perplexity(test),
        "Kneser-Ney bigram": KneserNey.fit(corpus.train.sentences, num_words, 2).perplexity(test),
    }
    outcome = train(config, folder, _next_run(out, "run"), report=report)
    result: dict[str, Any] = {"finished": outcome.finished, "run": str(outcome.run)}
    if not outcome.finished:
        return result
    assert outcome.test is not None
    model = load_model(outcome.run / BEST)
    usage = _usage(model, corpus)
    title = f"{config.model.num_states:,} states on {corpus.train.num_tokens:,} tokens of Python's docstrings"
    metrics = read_metrics(outcome.run / METRICS)
    file = outcome.run / "learning.png"
    picture = plot_learning(metrics, file, usage=usage.shares, baselines=baselines, title=title)
    return result | {
        "train_tokens": corpus.train.num_tokens,
        "test_tokens": outcome.test.tokens,
        "vocabulary": num_words,
        "num_states": config.model.num_states,
        "rank": config.model.rank,
        "perplexity": {**baselines, f"{config.model.family}": outcome.test.perplexity},
        "effective_states": usage.effective,
        "states": _top_states(model, usage),
        "samples": _samples(model, seed),
        "picture": str(picture),
        "seconds": outcome.seconds,
    }


def _next_run(out: Path, name: str) -> Path:
    """The first of name-1, name-2, ... that does not exist: no run is ever written over."""
    number = 1
    while (out / f"{name}-{number}").exists():
        number += 1
    return out / f"{name}-{number}"


def _usage(model: AnyModel, corpus: Corpus) -> UsageSummary:
    """How often each state is used, by its posterior over the validation text."""
    mass: Any = 0.0
    with torch.no_grad():
        parts = model.parts()
        for batch in length_batches(corpus.valid, 2048):
            posterior = model.query(model.potentials(batch, parts=parts)).posterior().state
            mass = mass + posterior.sum((0, 1)).double()
    return state_usage(mass)


def _top_states(model: AnyModel, usage: UsageSummary) -> list[dict[str, Any]]:
    """The most used states and their most probable words."""
    assert model.vocabulary is not None
    most = usage.by_share[:NUM_STATES_SHOWN]
    with torch.no_grad():
        rows = model.parts().emission.log_rows(torch.tensor([use.state for use in most]))
    tables = top_words(rows, model.vocabulary.words, num=7)
    return [
        {"state": use.state, "share": use.share, "words": [word for word, _ in words]}
        for use, words in zip(most, tables, strict=True)
    ]


def _samples(model: AnyModel, seed: int) -> list[str]:
    return model.generate(NUM_SENTENCES, max_length=40, seed=seed)


def _text(result: dict[str, Any]) -> str:
    lines = [
        f"{result['num_states']:,} hidden states, rank {result['rank']:,}, trained on {result['train_tokens']:,} "
        f"tokens of Python's docstrings ({result['vocabulary']:,} words) in {result['seconds']:.0f} s",
        "",
        f"test perplexity ({result['test_tokens']:,} tokens, <eos> counted)",
        *(f"  {name:<20}{value:8.1f}" for name, value in result["perplexity"].items()),
        "",
        f"the ten most used states (as many as {result['effective_states']:.0f} equally used ones do the work)",
        *(f"  {use['state']:>5} {use['share']:6.1%}  {' '.join(use['words'])}" for use in result["states"]),
        "",
        "sampled sentences",
        *(f"  {sentence}" for sentence in result["samples"]),
        "",
        f"picture  {result['picture']}",
        f"run      {result['run']}",
    ]
    return "\n".join(lines)


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
        "right_branching": _scores(evaluate_brackets([right_branching(tree.words) for tree in gold], gold)),
        "trees": [{"true": str(gold[i]), "induced": str(found[i])} for i in shown],
        "pictures": [
            str(save_tree(gold[i], best.run / f"tree-{k}.svg", predicted=found[i], title="above: true, below: induced"))
            for k, i in enumerate(shown, 1)
        ],
        "seconds": sum(run.seconds for run in runs),
    }


def _choose_sentences(gold: list[Tree]) -> list[int]:
    """Sentences of middle length: the first ones, so that neither good nor bad ones are picked."""
    shortest, longest = SHOWN_WORDS
    fitting = [i for i, tree in enumerate(gold) if shortest <= len(tree.words) <= longest]
    return (fitting or list(range(len(gold))))[:NUM_TREES_SHOWN]


def _scores(scores: BracketScores) -> dict[str, float]:
    return {"sentence_uf1": scores.uf1.sentence, "corpus_uf1": scores.uf1.corpus, "sentence_kim": scores.kim.sentence}


def grammar_text(result: dict[str, Any]) -> str:
    """The grammar, its scores and a few of its trees as text."""
    induced, right = result["induced"], result["right_branching"]
    perplexities = ", ".join(f"{value:.2f}" for value in result["valid_perplexity"].values())
    lines = [
        f"a grammar ({result['family']}) induced from sentences without trees in {result['seconds']:.0f} s; validation "
        f"perplexities {perplexities}: the lowest is shown",
        "",
        f"brackets of {result['sentences']} new sentences, F1 in percent   sentence    corpus",
        f"  {'induced grammar':<47}{100 * induced['sentence_uf1']:8.1f}  {100 * induced['corpus_uf1']:8.1f}",
        f"  {'right-branching':<47}{100 * right['sentence_uf1']:8.1f}  {100 * right['corpus_uf1']:8.1f}",
    ]
    for trees in result["trees"]:
        true, found = parse_tree(trees["true"]), parse_tree(trees["induced"])
        lines += ["", " ".join(true.words), *_side_by_side(tree_text(true), tree_text(found, against=true))]
    lines += ["", "* brackets that the true tree (left) has not", ""]
    return "\n".join(lines + [f"picture  {path}" for path in result["pictures"]] + [f"run      {result['run']}"])


def _side_by_side(left: str, right: str) -> list[str]:
    one, other = left.splitlines(), right.splitlines()
    width = max(map(len, one)) + 4
    rows = max(len(one), len(other))
    one, other = one + [""] * (rows - len(one)), other + [""] * (rows - len(other))
    return [f"  {a:<{width}}{b}".rstrip() for a, b in zip(one, other, strict=True)]
