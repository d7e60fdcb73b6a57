"""`rankfold demo`: train a language model of 1,024 states on English that is on every machine, and look at it.

The docstrings of Python's standard library; perplexity beside two baselines, what the states say, sampled
sentences, and a picture. Read next: `training/loop.py`, which does the work.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from rankfold.analysis.ngrams import KneserNeyBigram, Unigram
from rankfold.analysis.states import UsageSummary, state_usage, top_words
from rankfold.cli.demo_grammar import demo_grammar, grammar_text
from rankfold.cli.output import to_json
from rankfold.cli.train import add_settings
from rankfold.data.batch import length_batches
from rankfold.data.demo import write_corpus
from rankfold.errors import DataError
from rankfold.models import load_model
from rankfold.models.catalog import AnyModel
from rankfold.models.sequence_model import SequenceModel
from rankfold.plots.learning import plot_learning
from rankfold.plots.picture import require_matplotlib
from rankfold.training.corpus import Corpus, read_corpus
from rankfold.training.loop import train
from rankfold.training.recipes import load_recipe
from rankfold.training.report import Reporter, reporter
from rankfold.training.run_dir import BEST, METRICS, read_metrics

NUM_STATES_SHOWN, NUM_SENTENCES = 10, 5
EXAMPLE = "example:\n  rankfold demo --out rankfold-demo\n  rankfold demo --grammar --out rankfold-demo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its arguments."""
    parser.description = (
        "Train a low-rank HMM of 1,024 states on the docstrings of the installed Python's standard library; print "
        "its perplexity beside a unigram and a Kneser-Ney bigram, what its states say, and sampled sentences. With "
        "--grammar: induce a grammar from sentences whose trees are known, and compare its trees with those."
    )
    parser.epilog = EXAMPLE
    parser.add_argument("--out", type=Path, default=Path("rankfold-demo"), help="folder for text, runs and pictures")
    add_settings(parser)
    parser.add_argument(
        "--grammar", action="store_true", help="induce a grammar from sentences instead, and show its trees"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the sampled sentences (default: 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Train, and print what came of it."""
    if arguments.grammar:
        found = demo_grammar(arguments.out, settings=arguments.settings, report=reporter())
        print(to_json(found, indent=2) if arguments.json else grammar_text(found))
        return 0 if found["finished"] else 130
    result = demo(arguments.out, settings=arguments.settings, seed=arguments.seed, report=reporter())
    print(to_json(result, indent=2) if arguments.json else _text(result))
    return 0 if result["finished"] else 130


def demo(
    out: Path = Path("rankfold-demo"), *, settings: list[str], seed: int = 1, report: Reporter | None = None
) -> dict[str, Any]:
    """The demonstration as plain data; each call trains into a folder of its own, `run-1`, `run-2`, ..."""
    require_matplotlib()
    report = report or Reporter()
    config = load_recipe("demo", settings)
    if config.model.family not in ("hmm", "lhmm", "banded"):
        raise DataError("the demo shows what states say of all words: set model.family to hmm, lhmm or banded.")
    folder = out / "corpus"
    write_corpus(folder)
    corpus = read_corpus(folder, config.data)
    baselines = {
        "unigram": Unigram.fit(corpus.train.sentences, len(corpus.vocabulary)).perplexity(_test(corpus)),
        "Kneser-Ney bigram": KneserNeyBigram.fit(corpus.train.sentences, len(corpus.vocabulary)).perplexity(
            _test(corpus)
        ),
    }
    outcome = train(config, folder, _next_run(out), report=report)
    result: dict[str, Any] = {"finished": outcome.finished, "run": str(outcome.run)}
    if not outcome.finished or outcome.test is None:
        return result
    model = load_model(outcome.run / BEST)
    usage = _usage(model, corpus)
    title = f"{config.model.num_states:,} states on {corpus.train.num_tokens:,} tokens of Python's docstrings"
    metrics = read_metrics(outcome.run / METRICS)
    mass = [use.share for use in usage.by_share]
    picture = plot_learning(metrics, outcome.run / "learning.png", usage=mass, baselines=baselines, title=title)
    return result | {
        "train_tokens": corpus.train.num_tokens,
        "test_tokens": outcome.test.tokens,
        "vocabulary": len(corpus.vocabulary),
        "num_states": config.model.num_states,
        "rank": config.model.rank,
        "perplexity": {**baselines, f"{config.model.family}": outcome.test.perplexity},
        "effective_states": usage.effective,
        "states": _shown(model, usage),
        "samples": _samples(model, seed),
        "picture": str(picture),
        "seconds": outcome.seconds,
    }


def _test(corpus: Corpus) -> list[list[int]]:
    assert corpus.test is not None  # write_corpus writes all three splits
    return corpus.test.sentences


def _next_run(out: Path) -> Path:
    """The first of run-1, run-2, ... that does not exist: no run is ever written over."""
    number = 1
    while (out / f"run-{number}").exists():
        number += 1
    return out / f"run-{number}"


def _usage(model: AnyModel, corpus: Corpus) -> UsageSummary:
    """How often each state is used, by its posterior over the validation text."""
    mass: Any = 0.0
    with torch.no_grad():
        parts = model.parts()
        for batch in length_batches(corpus.valid, 2048):
            posterior = model.query(model.potentials(batch, parts=parts)).marginals()
            mass = mass + posterior.sum((0, 1)).double()
    return state_usage(mass)


def _shown(model: AnyModel, usage: UsageSummary) -> list[dict[str, Any]]:
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
    assert model.vocabulary is not None
    assert isinstance(model, SequenceModel)
    generator = torch.Generator().manual_seed(seed)
    drawn = model.generate(NUM_SENTENCES, generator=generator, max_length=40)
    return [" ".join(model.vocabulary.decode(ids)) for ids in drawn]


def _text(result: dict[str, Any]) -> str:
    if "perplexity" not in result:
        return f"interrupted; the run is in {result['run']}"
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
