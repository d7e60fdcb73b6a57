"""`rankfold evaluate --baselines`: n-gram models of the run's own training text, next to the model.

They have the model's vocabulary, `<unk>` included, and are tested on the same lines with the same denominator.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankfold.analysis.ngrams import baselines
from rankfold.cli.load import data_config
from rankfold.cli.output import say, table
from rankfold.errors import DataError, quantity
from rankfold.files import read_json
from rankfold.models.base import WordModel
from rankfold.models.config import PERPLEXITY
from rankfold.training.corpus import Corpus, read_corpus
from rankfold.training.run_dir import recipe_path

DATA = "data.json"


def run_data(path: Path) -> Path | None:
    """The data that the run of a model was trained on, as its data.json names them; None where it does not."""
    found = _noted(path).get("path")
    return Path(found) if isinstance(found, str) else None


def training_text(path: Path, model: WordModel[Any, Any], given: Path | None) -> Corpus:
    """The text that a run was trained on, read again; `given` names it where it has moved.

    `DataError` if it is not the text of the run. Of a model by itself nothing is known: any text will do.
    """
    folder = run_data(path) if given is None else given
    if folder is None:
        raise DataError(
            f"{path} does not say on what it was trained, and baselines learn from the same text.\n"
            "  Name it: --train DIR, the folder that rankfold train had as --data."
        )
    if given is None and not folder.exists() and not folder.parent.exists():
        raise DataError(f"{folder}, on which {path} was trained, is gone.\n  If it has moved, say where: --train DIR.")
    corpus = read_corpus(folder, data_config(path), model.vocabulary, model=model.config)
    fingerprint = _noted(path).get("fingerprint")
    if fingerprint is not None and corpus.fingerprint != fingerprint:
        raise DataError(
            f"{folder}: not the text that {path} was trained on: baselines of another text say nothing of it.\n"
            "  If the right one has moved, say where: --train DIR."
        )
    return corpus


def _noted(path: Path) -> dict[str, Any]:
    """What the run of a model noted of its data; nothing for a model by itself."""
    recipe = recipe_path(path)
    if recipe is None:
        return {}
    file = recipe.with_name(DATA)
    content = read_json(file, f"the {DATA} of a run, which says what text it is of,")
    if not isinstance(content, dict):
        raise DataError(f"{file}: holds no object; it says what text the run is of.")
    return content


def compare(
    model: WordModel[Any, Any],
    train: Sequence[Sequence[int]],
    test: Sequence[Sequence[int]],
    tokens: int,
    *,
    carried: bool = False,
) -> dict[str, dict[str, float]]:
    """Log-likelihood and perplexity of every baseline; `carried`: contexts reach across the ends of sentences."""
    assert model.vocabulary is not None
    say(f"counting n-grams of {quantity(len(train), 'training sentence')}")
    found = baselines(train, test, len(model.vocabulary), ends=model.vocabulary.ends, carried=carried)
    return {name: {"perplexity": PERPLEXITY(value, tokens), "log_likelihood": value} for name, value in found.items()}


def baselines_text(result: dict[str, Any]) -> str:
    """The model among its baselines, the best last."""
    found = result["baselines"]
    rows = {name: (one["perplexity"], one["log_likelihood"]) for name, one in found["models"].items()}
    own = f"{found['family']}, this model" + (" (a bound)" if result.get("bound") else "")
    rows[own] = (result["perplexity"], result["log_likelihood"])
    ordered = sorted(rows.items(), key=lambda row: -row[1][0])
    lines = [(name, f"{ppl:.2f}", f"{-ll / result['tokens']:.4f}") for name, (ppl, ll) in ordered]
    return "\n".join(
        [
            f"baselines        trained on {found['train_tokens']:,} tokens of {found['train']}; Kneser-Ney is modified",
            "",
            table(("model", "perplexity", "nats a token"), lines),
        ]
    )
