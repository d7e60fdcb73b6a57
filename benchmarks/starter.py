"""`python -m benchmarks starter`: trains the models inside the package, starter and starter-grammar, and packs them.

The text of the first is the docstrings of Python's standard library (PSF licence), split by module as in the demo, that
of the second sentences of the package's toy grammar of English. Weights are kept in float16; what is said of them is
measured on what was kept, next to Kneser-Ney models of the same text and vocabulary.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sysconfig
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rankfold.analysis.bracketing import evaluate_brackets, right_branching
from rankfold.analysis.ngrams import baselines
from rankfold.data.brackets import read_trees
from rankfold.data.demo import write_corpus, write_toy_corpus
from rankfold.data.sharded_weights import load_sharded, save_sharded
from rankfold.files import write_text
from rankfold.models.config import PERPLEXITY
from rankfold.models.parsing import parse
from rankfold.models.pretrained import load_model
from rankfold.training.corpus import read_corpus
from rankfold.training.evaluation import evaluate
from rankfold.training.loop import train
from rankfold.training.recipes import load_recipe
from rankfold.training.report import reporter
from rankfold.training.run_dir import BEST, METRICS, read_metrics

SETTINGS = ("train.updates=2500",)
ORDERS = (2, 5)  # of the Kneser-Ney models
NUM_LINES = 200  # held-out sentences that are kept next to the grammar; next to the HMM all are


def main(given: Sequence[str]) -> int:
    """Train what is not trained yet, and pack both models into a folder."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks starter", description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/starters"), help="texts and runs; finished ones serve")
    parser.add_argument("--out", type=Path, default=Path("src/rankfold/starters"), help="where the models go")
    arguments = parser.parse_args(given)
    for facts in (make_hmm(arguments.work, arguments.out), make_grammar(arguments.work, arguments.out)):
        print(json.dumps(facts, indent=2))
    return 0


def make_hmm(work: Path, out: Path) -> dict[str, Any]:
    """The block-sparse HMM of docstrings, which the demo trains, trained longer."""
    text = work / "docstrings"
    write_corpus(text)
    run, config = work / "starter", load_recipe("demo-text", list(SETTINGS))
    if not _is_finished(run):
        train(config, text, run, report=reporter())
    folder = out / "starter"
    facts = pack(run, folder, (text / "test.txt").read_text().splitlines())
    corpus = read_corpus(text, config.data)
    assert corpus.test is not None
    others = baselines(corpus.train.sentences, corpus.test.sentences, len(corpus.vocabulary), orders=ORDERS)
    facts["others"] = {name: PERPLEXITY(value, corpus.test.num_tokens) for name, value in others.items()}
    facts["text"] = "docstrings of Python's standard library, PSF licence (LICENSE-PYTHON.txt)"
    shutil.copy(Path(sysconfig.get_path("stdlib")) / "LICENSE.txt", folder / "LICENSE-PYTHON.txt")
    return _write_facts(folder, facts)


def make_grammar(work: Path, out: Path, num_runs: int = 2) -> dict[str, Any]:
    """The neural PCFG of toy sentences: the better of two runs by validation perplexity, which sees no tree."""
    text = work / "sentences"
    write_toy_corpus(text)
    config = load_recipe("demo-grammar", [])
    found: list[tuple[float, Path]] = []
    for i in range(num_runs):
        run = work / f"starter-grammar-{i + 1}"
        if not _is_finished(run):
            seeded = replace(config, train=replace(config.train, seed=config.train.seed + i))
            train(seeded, text, run, report=reporter())
        found.append((read_metrics(run / METRICS)[-1]["best_valid_perplexity"], run))
    gold = read_trees(text / "test.trees").trees
    folder = out / "starter-grammar"
    facts = pack(min(found)[1], folder, [" ".join(tree.words) for tree in gold][:NUM_LINES])
    trees = [parsed.tree for parsed in parse(load_model(folder), [tree.words for tree in gold])]
    facts["sentence_f1"] = evaluate_brackets(trees, gold).uf1.sentence
    branching = evaluate_brackets([right_branching(tree.words) for tree in gold], gold)
    facts["sentence_f1_right_branching"] = branching.uf1.sentence
    facts["text"] = "sentences of the package's toy grammar of English"
    return _write_facts(folder, facts)


def pack(run: Path, folder: Path, lines: Sequence[str]) -> dict[str, Any]:
    """The best model of a run in float16, and some lines with their perplexity under it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "vocab.json"):
        shutil.copy(run / BEST / name, folder / name)
    tensors, _ = load_sharded(run / BEST)
    save_sharded(folder, {name: x.half() if x.is_floating_point() else x for name, x in tensors.items()})
    write_text(folder / "lines.txt", "".join(line + "\n" for line in lines))
    model = load_model(folder)
    assert model.vocabulary is not None
    found = evaluate(model, model.vocabulary.encode_all([line.split() for line in lines]).sentences)
    return {
        "perplexity": found.perplexity,
        "tokens": found.tokens,
        "lines": "lines.txt, held out in training",
        "command": "python -m benchmarks starter",
    }


def _write_facts(folder: Path, facts: dict[str, Any]) -> dict[str, Any]:
    write_text(folder / "facts.json", json.dumps(facts, indent=2) + "\n")
    return facts


def _is_finished(run: Path) -> bool:
    return (run / METRICS).is_file() and bool(read_metrics(run / METRICS)[-1].get("end"))
