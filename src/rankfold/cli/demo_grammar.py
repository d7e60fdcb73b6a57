"""`rankfold demo --grammar`: induce a grammar from sentences alone, and compare its trees with those that made them.

The sentences are of a small grammar of English, which comes along. A few runs from different seeds; the one with the
best validation likelihood is shown, and no tree has a part in that. Read next: `data/demo.py`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rankfold.analysis.bracketing import BracketScores, evaluate_brackets, right_branching
from rankfold.analysis.parsing import parse
from rankfold.data.brackets import parse_tree, read_trees
from rankfold.data.demo import write_toy_corpus
from rankfold.data.trees import Tree
from rankfold.models import load_model
from rankfold.plots.trees import save_tree, tree_text
from rankfold.training.loop import train
from rankfold.training.recipes import load_recipe
from rankfold.training.report import Reporter
from rankfold.training.result import Result
from rankfold.training.run_dir import BEST

RECIPE, NUM_SHOWN, SHOWN_WORDS = "demo-grammar", 3, (7, 12)  # trees shown, and how many words they may have


def demo_grammar(
    out: Path = Path("rankfold-demo"), *, settings: list[str], num_runs: int = 2, report: Reporter | None = None
) -> dict[str, Any]:
    """The demonstration as plain data; each call trains into folders of its own, `grammar-1`, `grammar-2`, ..."""
    report = report or Reporter()
    config = load_recipe(RECIPE, settings)
    folder = out / "toy-corpus"
    write_toy_corpus(folder)
    runs: list[Result] = []
    for i in range(num_runs):
        seeded = replace(config, train=replace(config.train, seed=config.train.seed + i))
        report.say(f"grammar {i + 1} of {num_runs}, from seed {seeded.train.seed}")
        runs.append(train(seeded, folder, _next(out), report=report))
        if not runs[-1].finished:
            return {"finished": False, "run": str(runs[-1].run)}
    best = min(runs, key=lambda run: run.best_valid_perplexity)
    model = load_model(best.run / BEST)
    gold = read_trees(folder / "test.trees").trees
    found = [parsed.tree for parsed in parse(model, [tree.words for tree in gold])]
    shown = _shown(gold, found)
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


def _next(out: Path) -> Path:
    """The first of grammar-1, grammar-2, ... that does not exist: no run is ever written over."""
    number = 1
    while (out / f"grammar-{number}").exists():
        number += 1
    return out / f"grammar-{number}"


def _shown(gold: list[Tree], found: list[Tree]) -> list[int]:
    """Sentences of middle length: the first ones, so that neither good nor bad ones are picked."""
    shortest, longest = SHOWN_WORDS
    fitting = [i for i, tree in enumerate(gold) if shortest <= len(tree.words) <= longest]
    return (fitting or list(range(len(gold))))[:NUM_SHOWN]


def _scores(scores: BracketScores) -> dict[str, float]:
    return {"sentence_uf1": scores.uf1.sentence, "corpus_uf1": scores.uf1.corpus, "sentence_kim": scores.kim.sentence}


def grammar_text(result: dict[str, Any]) -> str:
    """The demonstration for a person."""
    if not result["finished"]:
        return f"interrupted; the run is in {result['run']}"
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
