"""`python -m benchmarks baselines`: what other models of words reach on the same splits and the same tokens.

    python -m benchmarks baselines --data ptb --device cuda --out docs/results/baselines-ptb.json

Unigram and Kneser-Ney (modified) count; the feed-forward 5-gram and the LSTM are trained by AdamW, the HMM of 900
states by the recipe of its larger siblings. A network has a checkpoint per epoch in --work and the HMM is a run there:
the same command goes on where it was cut off, and leaves alone what --out already holds. Every sentence starts afresh;
--carried reads the text as one instead, which is another protocol and another --out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

import rankfold
from benchmarks.baselines.fit import Setting, fit
from rankfold.analysis.ngrams import ORDERS, baselines
from rankfold.errors import DataError
from rankfold.files import read_json, write_text
from rankfold.models.config import PERPLEXITY
from rankfold.training.config import DataConfig
from rankfold.training.corpus import Corpus, read_corpus

NETWORKS = {
    "feed-forward 5-gram, 256 units": Setting("feed-forward", dropout=0.3),
    "LSTM, 2 layers of 256": Setting("lstm"),
    "LSTM, 2 layers of 650": Setting("lstm", dim=650, dropout=0.6),
}
HMM = "HMM, 900 states"
HMM_RECIPE, HMM_SETTINGS = "hmm-4096-ptb", ("model.num_states=900", "train.updates=36000")
HMM_CARRIED = ("data.batching=streams", "model.state_dropout=0")
COUNTS = ("unigram", *(f"Kneser-Ney, order {order}" for order in ORDERS))
SHORT = dict(zip(("feed-forward", "lstm-256", "lstm-650"), NETWORKS, strict=True))
GROUPS = {"counts": COUNTS, "networks": tuple(NETWORKS), "hmm": (HMM,)}
WORDS = GROUPS | {short: (name,) for short, name in SHORT.items()}


def main(given: Sequence[str]) -> int:
    """Fill the file of results; 0, or 1 if the HMM was interrupted."""
    args = _parser().parse_args(given)
    corpus = read_corpus(args.data, DataConfig())
    out: Path = args.out
    content = _read(out, corpus, args.data, carried=args.carried)
    work: Path = args.work or out.with_suffix("")
    for name in (name for group in args.models for name in WORDS[group]):
        if name in content["models"]:
            continue
        if name in COUNTS:
            rows = counts(corpus, carried=args.carried)
        elif name in NETWORKS:
            setting = replace(NETWORKS[name], carried=args.carried, seed=args.seed, precision=args.precision)
            setting = setting if args.epochs is None else replace(setting, epochs=args.epochs)
            file = "-".join(name.replace(",", "").lower().split()) + ".pt"
            rows = {name: network(setting, corpus, work / file, torch.device(args.device))}
        else:
            settings = [*HMM_SETTINGS, f"train.precision={args.precision}", *(HMM_CARRIED if args.carried else ())]
            settings += [] if args.updates is None else [f"train.updates={args.updates}"]
            rows = hmm(args.data, work / "hmm-900", args.device, settings)
        content["models"] |= rows
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, json.dumps(content, indent=2) + "\n")
    print(text(content))
    return int("hmm" in args.models and HMM not in content["models"])


def counts(corpus: Corpus, *, carried: bool) -> dict[str, dict[str, Any]]:
    """Unigram and Kneser-Ney of every order, on valid and test."""
    rows: dict[str, dict[str, Any]] = {name: {} for name in COUNTS}
    for split, encoded in corpus.splits.items():
        if split != "train":
            train, num_words = corpus.train.sentences, len(corpus.vocabulary)
            for name, value in baselines(train, encoded.sentences, num_words, carried=carried).items():
                rows[name][split] = PERPLEXITY(value, encoded.num_tokens)
    return rows


def network(setting: Setting, corpus: Corpus, checkpoint: Path, device: torch.device) -> dict[str, Any]:
    """One network, trained to its end."""
    fitted = fit(setting, corpus, checkpoint, device)
    return {
        "valid": fitted.valid,
        "test": fitted.test,
        "parameters": sum(p.numel() for p in fitted.network.parameters()),
        "minutes": fitted.seconds / 60,
        "device": _name(device),
        "setting": asdict(setting),
    }


def hmm(data: Path, run: Path, device: str, settings: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The HMM of 900 states; nothing where it was interrupted."""
    begun = (run / "recipe.toml").is_file()
    result = rankfold.train(
        None if begun else HMM_RECIPE, data, run, settings=() if begun else settings, resume=begun, device=device
    )
    if not result.finished:
        return {}
    row = {
        "valid": result.best_valid_perplexity,
        "test": None if result.test is None else result.test.perplexity,
        "parameters": sum(p.numel() for p in result.model.parameters()),
        "minutes": result.seconds / 60,
        "device": _name(torch.device(device)),
        "setting": {"recipe": HMM_RECIPE, "settings": list(settings)},
    }
    return {HMM: row}


def text(content: Mapping[str, Any]) -> str:
    """The table, the best last."""
    rows = sorted(content["models"].items(), key=lambda row: -row[1]["valid"])
    lines = [f"| {name} | {' | '.join(cells(row))} |" for name, row in rows]
    return "\n".join(["| model | valid | test | parameters | minutes |", "|---|---:|---:|---:|---:|", *lines])


def cells(row: Mapping[str, Any]) -> list[str]:
    """Perplexities, parameters and minutes of a row; of counts the last two mean nothing."""
    test = row.get("test")
    size = f"{row['parameters'] / 1e6:.1f}M" if "parameters" in row else "-"
    minutes = f"{row['minutes']:.1f}" if "minutes" in row else "-"
    return [f"{row['valid']:.1f}", "-" if test is None else f"{test:.1f}", size, minutes]


def _read(out: Path, corpus: Corpus, data: Path, *, carried: bool) -> dict[str, Any]:
    protocol = "state carried" if carried else "sentences independent"
    head = {"data": data.name, "protocol": protocol, **corpus.summary()}
    if not out.is_file():
        return {**head, "models": {}}
    content: dict[str, Any] = read_json(out, "the results of baselines")
    if any(content.get(key) != head[key] for key in ("fingerprint", "protocol")):
        raise DataError(f"{out}: of another text or protocol than {data}, {protocol}.\n  Give another --out.")
    return content


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def _parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks baselines",
        description=__doc__.partition(": ")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, required=True, help="folder or name of the splits, as of rankfold train")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="results, as JSON; added to")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="checkpoints (default: --out without its ending)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="(default: %(default)s)")
    parser.add_argument("--models", nargs="+", choices=tuple(WORDS), default=list(GROUPS), help="(default: all)")
    parser.add_argument(
        "--precision",
        choices=("float32", "bf16"),
        default="bf16",
        help="of products in training (default: %(default)s; slow on a CPU that has no units for it)",
    )
    parser.add_argument("--carried", action="store_true", help="the text as one, not sentence by sentence")
    parser.add_argument("--seed", type=int, default=1, help="of networks (default: %(default)s)")
    parser.add_argument("--epochs", type=int, help="of networks, to try the command (default: their own)")
    parser.add_argument("--updates", type=int, help="of the HMM, to try the command (default: 36,000)")
    return parser
