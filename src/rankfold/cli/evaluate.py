"""`rankfold evaluate`: the perplexity of a text or the nats per frame of recordings, with their denominators.

With tags, how well states predict them; with labels, how well segments agree with them; with trees, see
`cli/evaluate_trees.py`.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from rankfold.analysis.decoded_frames import answer_recordings, best_states
from rankfold.analysis.segmentation import SegmentationScores, evaluate_segmentation
from rankfold.analysis.states import How, tag_scores
from rankfold.cli.baselines import baselines_text, compare, run_data, training_text
from rankfold.cli.evaluate_trees import evaluate_trees, trees_text
from rankfold.cli.load import (
    LoadedFrames,
    add_missing,
    add_model,
    add_text,
    data_config,
    holds_frames,
    load_recordings,
    load_words,
    tell_unknown,
    text_path,
)
from rankfold.cli.output import say, to_json
from rankfold.cli.tag import add_method
from rankfold.data.batch import Batch
from rankfold.data.frame_files import Header
from rankfold.data.frames import UNKNOWN, Missing
from rankfold.data.sources import read_source
from rankfold.data.text import STDIN, Sentences, begins_names, find_split, holds_trees, read_sentences
from rankfold.errors import DataError, UnsupportedError, quantity
from rankfold.models.catalog import AnyModel
from rankfold.models.config import PlanName, readers
from rankfold.models.strings import Method, tag
from rankfold.numerics.precision import matmul_precision
from rankfold.training import evaluation
from rankfold.training.config import DataConfig

Protocol = Literal["sentences", "streams"]
DESCRIPTION = (
    "Print the perplexity of a text. Tokens are its words and one <eos> per sentence; words the model does not "
    "know count as <unk>. A sample is computed again with logarithms, and the largest difference shown. With "
    "--baselines, next to n-gram models of the text that the run was trained on. With "
    "--trees, how many brackets of gold trees a grammar finds, next to trees that need none. Of a model of "
    "frames: the nats per frame of recordings, and with labels the scores of its segments."
)
EXAMPLE = """\
example:
  rankfold evaluate runs/small ptb
  rankfold evaluate runs/small ptb --split valid --json
  rankfold evaluate runs/small --baselines
  rankfold evaluate runs/small words.txt --tags tags.txt
  rankfold evaluate runs/grammar --trees gum.test.trees.txt.gz
  rankfold evaluate runs/walks recordings.npz"""

TELLING = 1e-3  # nats per token, a thousandth of a perplexity: more is not rounding
CHECKED, LONGEST = 4, 64  # recordings that are computed again with logarithms, and frames of each


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "rankfold evaluate RUN [FILE] [--trees FILE ...] [option ...]"  # --trees takes what follows it
    add_model(parser)
    add_text(parser, "a text file, or a folder of splits; of models of frames recordings")
    parser.add_argument(
        "--trees", type=Path, nargs="+", metavar="TREES", help="gold trees for a grammar; with FILE, of these words"
    )
    parser.add_argument(
        "--replace",
        nargs="+",
        default=[],
        metavar="WORD=OTHER",
        help="with --trees: write words of the trees otherwise before they are looked up",
    )
    parser.add_argument(
        "--decode", choices=("mbr", "viterbi"), default="mbr", help="with --trees: how trees are chosen (default: mbr)"
    )
    parser.add_argument("--split", default="test", help="which file of a folder (default: test)")
    parser.add_argument(
        "--plan", choices=("auto", "state", "rank"), default="auto", help="rank-space models: what is summed out first"
    )
    parser.add_argument(
        "--protocol",
        choices=("sentences", "streams"),
        help="sentences by themselves, or one text with the state carried across (default: as the run was trained)",
    )
    parser.add_argument(
        "--baselines",
        action="store_true",
        help="also the perplexities of a unigram and of Kneser-Ney models of order 2 to 5; without FILE, on the run's "
        "own data",
    )
    parser.add_argument(
        "--train", type=Path, metavar="DIR", help="with --baselines: the run's training data, where they have moved"
    )
    parser.add_argument("--tags", type=Path, metavar="FILE", help="gold tags, one per word, line by line with the text")
    add_method(parser)
    add_missing(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the evaluation."""
    folder, common = arguments.folder, {"split": arguments.split, "device": arguments.device}
    given = arguments.file is not None or arguments.data is not None
    if holds_frames(folder):
        data = _recordings_path(arguments)
        result = evaluate_recordings(folder, data, missing=arguments.missing, header=arguments.header, **common)
        text = frames_text
    elif arguments.trees:
        if arguments.baselines:
            raise DataError("--baselines compares perplexities, --trees brackets: one of them.")
        words = (text_path(arguments) or STDIN) if given else None
        replaced = pairs(arguments.replace)
        result = evaluate_trees(
            folder, arguments.trees, text=words, replaced=replaced, decode=arguments.decode, **common
        )
        text = trees_text
    else:
        how = {"plan": arguments.plan, "protocol": arguments.protocol, "method": arguments.method or "posterior"}
        if arguments.train is not None and not arguments.baselines:
            raise DataError("--train names the text of --baselines, which is not given.")
        own = arguments.train or run_data(folder) if arguments.baselines and not given else None
        result = evaluate(
            folder,
            text_path(arguments) if own is None else own,
            tags=arguments.tags,
            baselines=arguments.baselines,
            train=arguments.train,
            **how,
            **common,
        )
        text = words_text
    print(to_json(result, indent=2) if arguments.json else text(result))
    return 0


def _recordings_path(arguments: argparse.Namespace) -> Path:
    given = {"--trees": arguments.trees, "--tags": arguments.tags, "--protocol": arguments.protocol}
    given |= {"--baselines": arguments.baselines, "--train": arguments.train}
    strange = [name for name, value in given.items() if value]
    data = text_path(arguments)
    if strange or data is None:
        what = f"{strange[0]} is for models of words" if strange else "evaluate needs FILE, a file or folder"
        raise DataError(f"{what}: this model is of frames, and is evaluated on recordings.")
    return data


def evaluate(
    path: Path,
    data: Path | None,
    *,
    split: str = "test",
    plan: PlanName = "auto",
    protocol: Protocol | None = None,
    tags: Path | None = None,
    method: Method = "posterior",
    baselines: bool = False,
    train: Path | None = None,
    device: str = "auto",
) -> dict[str, Any]:
    """The evaluation as plain data; `data` None: standard input. Unknown words and empty lines go to standard error.

    With `baselines` also those of n-gram models of the run's training text, which `train` names where it has moved.
    """
    model, vocabulary = load_words(path, device)
    options = _options(model, plan)
    config = _batching(path, protocol)
    trees = model.config.data == "sentences"
    corpus = training_text(path, model, train) if baselines else None
    if data is not None and (data.is_dir() or begins_names(data)):
        data = find_split(data, split, trees=trees)
    text, left_out = _text_of(model, data)
    gold = None if tags is None else _aligned(read_sentences(tags), text)
    encoded = vocabulary.encode_all(text)
    if text.num_empty_lines:
        say(f"{text.path}: skipped {quantity(text.num_empty_lines, 'empty line')}")
    tell_unknown(text, vocabulary)
    if left_out:
        say(f"left out: {quantity(left_out, 'sentence')} of one word, which this grammar does not generate")
    counts = f"{quantity(len(encoded), 'sentence')}, {quantity(encoded.num_tokens, 'token')}"
    say(f"evaluating {counts}, on {model.device.type}")
    with torch.no_grad(), matmul_precision("float32", model.device):
        parts = model.parts()
    if model.is_wide(parts):
        say("some of this model's probabilities are too small for float32: computed in float64")
    found = evaluation.evaluate(model, encoded, config, parts=parts, **options)
    difference, checked = evaluation.log_check(model, encoded.sentences)
    if not difference <= TELLING:
        say(
            f"warning: this model's numbers are off by up to {difference:.2g} nats per token: some of its "
            "probabilities are too small for its dtype.\n  Load it and take model.double()."
        )
    result: dict[str, Any] = {
        "perplexity": found.perplexity,
        "tokens": found.tokens,
        "log_likelihood": found.log_likelihood,
        "sentences": found.sentences,
        **({"empty_lines": text.num_empty_lines} if text.num_empty_lines else {}),
        "unknown_words": encoded.num_unknown,
        "unknown_rate": encoded.num_unknown / text.num_words,
        "denominator": model.denominator,
        **({"bound": True} if found.is_bound else {}),
        **({"left_out": left_out} if left_out else {}),
        "protocol": "state carried across" if config.batching == "streams" else "sentences independent",
        "largest_log_difference": difference,
        "log_checked_sentences": checked,
    }
    if corpus is not None:
        carried = config.batching == "streams"
        result["baselines"] = {
            "family": model.config.family,
            "train": str(train or run_data(path)),
            "train_tokens": corpus.train.num_tokens,
            "models": compare(model, corpus.train.sentences, encoded.sentences, found.tokens, carried=carried),
        }
    return result if gold is None else {**result, "tags": _tags(model, encoded.sentences, gold, method)}


def pairs(replaced: list[str]) -> dict[str, str]:
    """WORD=OTHER as a dictionary."""
    pairs = {}
    for text in replaced:
        word, equals, other = text.rpartition("=")
        if not word or not equals or not other:
            raise DataError(f"--replace is {text!r}, but WORD=OTHER was expected, such as %=N.")
        pairs[word] = other
    return pairs


def _text_of(model: AnyModel, path: Path | None) -> tuple[Sentences, int]:
    """The sentences of a text, and how many of one word were left out because the model, a grammar, has none."""
    if model.config.data == "text":
        return read_sentences(path), 0
    if path is None or not holds_trees(path):
        text = read_sentences(path, brackets=False)
    else:
        text = Sentences(read_source(path).sentences, 0, path)
    kept = [words for words in text if len(words) > 1 or model.config.single_words]
    if not kept:
        raise DataError(f"{text.path}: every sentence is of one word, which this grammar does not generate.")
    return dataclasses.replace(text, sentences=kept), len(text) - len(kept)


def _options(model: AnyModel, plan: PlanName) -> dict[str, Any]:
    """Options of the model's potentials."""
    if plan == "auto":
        return {}
    if readers(model.config, "plan") is not None:
        raise UnsupportedError(
            f'--plan is {plan}, but a model of the family "{model.config.family}" has one order only.\n'
            "  Leave it out; plans are for rank-space models."
        )
    return {"plan": plan}


def _batching(path: Path, protocol: Protocol | None) -> DataConfig:
    """How the run cut its text, or as --protocol says."""
    config = data_config(path)
    streams = config.batching == "streams" if protocol is None else protocol == "streams"
    return dataclasses.replace(config, batching="streams" if streams else "length")


def _aligned(gold: Sentences, text: Sentences) -> list[list[str]]:
    """The tags, one for each word."""
    if gold.empty_lines != text.empty_lines:
        raise DataError(
            f"{gold.path} has {gold.num_empty_lines:,} empty lines and {text.path} {text.num_empty_lines:,}, but not "
            "in the same places: words and tags may have lost their pairing.\n  Remove them from both files."
        )
    if len(gold) != len(text):
        raise DataError(f"{gold.path} has {len(gold):,} lines, but {text.path} {len(text):,}: one for each sentence.")
    for number, (tags, words) in enumerate(zip(gold, text, strict=True), 1):
        if len(tags) != len(words):
            raise DataError(
                f"{gold.path}, line {number}: {len(tags)} tags, but {text.path} has {len(words)} words there.\n"
                "  One tag per word was expected."
            )
    return gold.sentences


def _tags(model: AnyModel, rows: list[list[int]], gold: list[list[str]], method: Method) -> dict[str, Any]:
    states, of = tag(model, rows, method)
    scores = tag_scores(states, gold)
    names = ("many_to_one", "one_to_one", "v_measure", "homogeneity", "completeness")
    return {**{name: getattr(scores, name) for name in names}, "states_used": scores.num_states_used, "of": of}


def words_text(result: dict[str, Any]) -> str:
    """The evaluation for a person."""
    lines = [
        f"perplexity       {result['perplexity']:.3f}"
        + (" (a bound: the perplexity is lower)" if result.get("bound") else ""),
        f"tokens           {result['tokens']:,} ({result['denominator']}), {quantity(result['sentences'], 'sentence')}",
        *([f"empty lines      {result['empty_lines']:,}, no sentences"] if "empty_lines" in result else []),
        f"log-likelihood   {result['log_likelihood']:.4f} nats",
        f"protocol         {result['protocol']}",
        f"unknown words    {result['unknown_words']:,} ({100 * result['unknown_rate']:.2f} % of words)",
        f"check            {result['largest_log_difference']:.1e} nats a token from logarithms at most, "
        f"over {quantity(result['log_checked_sentences'], 'sentence')}",
    ]
    if "tags" in result:
        tags = result["tags"]
        lines.append(
            f"tags             many-to-one {tags['many_to_one']:.4f}  one-to-one {tags['one_to_one']:.4f}  "
            f"V {tags['v_measure']:.4f} (h {tags['homogeneity']:.4f}, c {tags['completeness']:.4f})  "
            f"{tags['states_used']:,} {tags['of']} used"
        )
    if "baselines" in result:
        lines.append(baselines_text(result))
    return "\n".join(lines)


def evaluate_recordings(
    path: Path,
    data: Path,
    *,
    split: str | None = "test",
    missing: Missing = "error",
    header: Header = "auto",
    device: str = "auto",
) -> dict[str, Any]:
    """The evaluation as plain data."""
    loaded = load_recordings(path, data, split=split, missing=missing, header=header, device=device)
    model, frames = loaded.model, loaded.frames
    for line in str(frames).splitlines()[1:]:
        if not line.endswith("labels"):
            say(line)
    say(f"evaluating {quantity(len(frames), 'recording')}, {frames.num_frames:,} frames, on {model.device.type}")
    found = evaluation.evaluate(model, frames)
    volume = loaded.space.log_volume(frames) if model.observation.measured else 0.0
    result: dict[str, Any] = {
        "nats_per_frame": found.nats,
        "nats_per_frame_unscaled": None if volume is None else found.nats + volume,
        "log_likelihood": found.log_likelihood,
        "frames": found.tokens,
        "recordings": len(frames),
        "missing_frames": frames.num_missing,
        "standardise": loaded.space.standardise,
        "denominator": model.denominator,
        "largest_log_difference": log_difference(loaded),
    }
    labelled = labelled_places(loaded)
    if labelled:
        result["segmentation"] = segmentation(loaded, labelled)
    return result


def labelled_places(loaded: LoadedFrames) -> list[int]:
    """The recordings with a true label at some frame."""
    labels = loaded.given.labels or []
    return [i for i, y in enumerate(labels) if bool((y != UNKNOWN).any())]


def segmentation(loaded: LoadedFrames, places: list[int]) -> dict[str, Any]:
    """Scores against the true labels: states matched to them one to one, many to one, and as training bound them."""
    assert loaded.given.labels is not None
    truth = [loaded.given.labels[i] for i in places]
    states = best_states(loaded.model, loaded.frames.subset(places))
    ways: dict[str, How | None] = {"one_to_one": "one_to_one", "many_to_one": "many_to_one"}
    if loaded.space.labelled:
        ways["as_labelled"] = None
    scores = {name: evaluate_segmentation(states, truth, matching=how) for name, how in ways.items()}
    most = np.bincount(np.concatenate([y[y != UNKNOWN] for y in truth])).max()
    return {
        "recordings": len(places),
        "states_used": len({int(z) for row in states for z in np.unique(row)}),
        "largest_label": float(most) / sum(int((y != UNKNOWN).sum()) for y in truth),
        **{name: _segment_scores(found) for name, found in scores.items()},
    }


def log_difference(loaded: LoadedFrames) -> float:
    """The largest difference, in nats per frame, of fast arithmetic and logarithms, over starts of a few recordings."""
    model = loaded.model
    with torch.no_grad():
        parts = model.parts()

    def gaps(batch: Batch) -> list[float]:
        short = batch._replace(values=batch.values[:, :LONGEST], lengths=batch.lengths.clamp(max=LONGEST), last=False)
        p = model.potentials(short, parts=parts)
        fast, slow = model.log_z(p), model.log_z(p, "log")
        found: list[float] = torch.where(fast == slow, 0.0, (fast - slow).abs() / short.lengths).tolist()
        return found

    some = loaded.frames.subset(range(min(CHECKED, len(loaded.frames))))
    return float(np.max(answer_recordings(model, some, gaps)))


def _segment_scores(found: SegmentationScores) -> dict[str, Any]:
    return {
        "frame_accuracy": found.accuracy,
        "frame_accuracy_sequence_mean": found.accuracy_sequence,
        **{f"f1_{one.percent}": one.corpus for one in found.f1},
        **{f"f1_{one.percent}_sequence_mean": one.sequence for one in found.f1},
        "edit": found.edit,
        "nmi": found.nmi,
        "predicted_segments": found.num_predicted,
        "true_segments": found.num_true,
    }


def frames_text(result: dict[str, Any]) -> str:
    """The evaluation for a person."""
    unscaled = result["nats_per_frame_unscaled"]
    scaled = result["standardise"] != "none"
    lines = [
        f"nats a frame     {result['nats_per_frame']:.4f}" + (", of standardised features" if scaled else ""),
        *([f"                 {unscaled:.4f} in the features' own units"] if scaled and unscaled is not None else []),
        f"frames           {result['frames']:,} ({result['denominator']}), "
        f"{quantity(result['recordings'], 'recording')}",
        f"log-likelihood   {result['log_likelihood']:.4f} nats",
        f"check            {result['largest_log_difference']:.1e} nats a frame from logarithms at most",
    ]
    if "segmentation" not in result:
        return "\n".join(lines)
    scores = result["segmentation"]
    ways = [how for how in ("one_to_one", "many_to_one", "as_labelled") if how in scores]
    lines += ["", f"{'states as labels':<20}" + "".join(f"{how.replace('_', ' '):>14}" for how in ways)]
    shown = {"frame accuracy": "frame_accuracy", "F1@10": "f1_10", "F1@25": "f1_25", "F1@50": "f1_50", "edit": "edit"}
    for title, name in shown.items():
        lines.append(f"{title:<20}" + "".join(f"{scores[how][name]:>14.4f}" for how in ways))
    lines.append(f"{'NMI':<20}{scores['one_to_one']['nmi']:>14.4f}")
    own = scores["one_to_one"]
    lines.append(
        f"{quantity(scores['recordings'], 'recording')} with labels; {scores['states_used']:,} states used; "
        f"{own['predicted_segments']:,} segments, {own['true_segments']:,} true ones; "
        f"the largest label has {scores['largest_label']:.4f} of the frames"
    )
    return "\n".join(lines)
