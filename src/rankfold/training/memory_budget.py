"""The memory budget of a run: how much of a batch is computed at once, or why the run cannot start.

The model is planned on torch's meta device: nothing is allocated to find out that it would not fit.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, NamedTuple

from rankfold.data.clusters import Clusters, uniform_clusters
from rankfold.errors import DomainError, UnsupportedError
from rankfold.models.base import Model
from rankfold.models.catalog import sized_model
from rankfold.models.config import readers
from rankfold.planning.cost import Plan
from rankfold.planning.measure import GIB, available
from rankfold.training.checkpoint import Progress
from rankfold.training.config import Config
from rankfold.training.distributed import gathered, num_sharing
from rankfold.training.shapes import TREE_WIDTH, padded_width, shapes_of

FLOAT = 4
LONGEST = 2**16  # words of a sentence, more than which no limit is looked for
HALVED = ("num_states", "num_nonterminals", "num_preterminals", "rank")  # sizes that a refusal proposes smaller
NOTHING = "no single size of the model, made smaller, does; take less of several, or of model.dim, words or features"


class DataSizes(NamedTuple):
    """The sizes of a data set that cannot be cut."""

    num_inputs: int  # words of the vocabulary, or features of a frame
    longest_train: int  # tokens of a sentence, or frames of a recording
    longest_held_out: int = 1
    clusters: Clusters | None = None
    lengths: tuple[int, ...] = ()  # of all recordings: long ones are summed in stretches


class Budget(NamedTuple):
    """How much a run computes at once."""

    part_tokens: int = 0  # padded tokens of a gradient; 0: whole batches
    eval_tokens: int = 0  # padded tokens of an evaluation; 0: as the recipe says
    graphs: bool = True  # whether captured graphs fit, whose memory stays theirs
    tree_width: int = 0  # of a grammar: `part_tokens` are of sentences so long; shorter ones take less per token
    wide: bool = True  # whether graphs in float64 would fit in the place of captured graphs


class Need(NamedTuple):
    """Bytes of a run whose batches are cut into single sequences."""

    state: int  # parameters, gradients, moments, average
    work: int  # tables made of the parameters once a batch
    sequence: int  # the longest
    evaluating: bool  # whether it is an evaluation that needs most

    @property
    def total(self) -> int:
        return self.state + self.work + self.sequence


def memory_budget(
    config: Config, data: DataSizes, device: str, progress: Progress, say: Callable[[str], None]
) -> Budget:
    """The budget a run keeps to: when it is resumed, the one it began with, as long as that still fits.

    Processes that share a device share what is free there; `train.memory` is that of each.
    """
    memory = available(device, config.train.memory)
    if memory is not None and not config.train.memory:
        memory //= num_sharing(device)
    budget = fit(config, data, device, memory)
    part, evaluated = budget.part_tokens, budget.eval_tokens
    if progress.update:
        part, evaluated = _smaller(progress.part_tokens, part), _smaller(progress.eval_tokens, evaluated)
        if (part, evaluated) != (progress.part_tokens, progress.eval_tokens):
            say("there is less memory than when the run began: parts are smaller, and the last digits may differ")
    if part and memory is not None:
        what = config.model.measure.unit + (f" of sentences of {width} words" if (width := budget.tree_width) else "")
        say(f"batches are computed in parts of at most {part:,} {what}, to fit into {memory / GIB:.3g} GiB")
    progress.part_tokens, progress.eval_tokens = part, evaluated
    return budget._replace(part_tokens=part, eval_tokens=evaluated)


def agreed(budget: Budget, progress: Progress) -> Budget:
    """The smallest budget of all processes of a run: they cut an evaluation into the same batches."""
    for other in gathered(budget):
        part, evaluated = (_smaller(x, y) for x, y in zip(budget[:2], other[:2], strict=True))
        budget = budget._replace(part_tokens=part, eval_tokens=evaluated, graphs=budget.graphs and other.graphs)
        budget = budget._replace(wide=budget.wide and other.wide)
    progress.part_tokens, progress.eval_tokens = budget.part_tokens, budget.eval_tokens
    return budget


def _smaller(before: int, now: int) -> int:
    """The smaller of two limits on tokens at once; 0 stands for no limit."""
    return min(before or now, now or before)


def fit(config: Config, data: DataSizes, device: str, memory: int | None) -> Budget:
    """The budget for so many bytes; `UnsupportedError` with settings that would fit if not even one sequence does."""
    if memory is None:
        return Budget()
    for graphs in (True, False) if config.train.graphs and device.startswith("cuda") else (False,):
        budget = budget_in(config, data, device, memory, graphs=graphs)
        if budget is not None:
            return budget
    least = least_memory(config, data, device)
    if least.total > memory:
        raise UnsupportedError(_refusal(config, data, device, memory, least))
    # Recordings one at a time, the longest in stretches; an evaluation cuts them as it needs.
    step, evaluation = _plans(config, data, device)
    rest = memory - _state_bytes(config, step)
    part = max(1, (rest - step.work_bytes) // step.token_bytes)
    fitting = max(1, evaluation.largest_evaluation(rest - FLOAT * step.parameters))
    return Budget(part, fitting if fitting < config.data.eval_tokens else 0, graphs=False)


def budget_in(config: Config, data: DataSizes, device: str, memory: int, *, graphs: bool) -> Budget | None:
    """The budget with or without captured graphs; None if not even one sequence fits."""
    step, evaluation = _plans(config, data, device)
    largest, longest, eval_tokens = _tokens(config, data, graphs=graphs)
    if graphs and (config.data.batching == "unsorted" or config.model.data == "recordings"):
        largest = 16 * largest // 9  # a shape of theirs, filled up (`training/shapes.py`)
    rest = memory - _state_bytes(config, step)
    # The memory of a graph stays its own, so an update that is repeated without graphs needs the same again.
    share = rest // 2 if graphs else rest
    part = min(largest, (share - step.work_bytes) // step.token_bytes)
    if part < longest:
        return None
    taken = step.work_bytes + part * step.token_bytes
    if graphs:
        rest -= taken
    fitting = evaluation.largest_evaluation(rest - FLOAT * step.parameters)
    if fitting < eval_tokens:
        return None
    fitting = min(fitting, config.data.eval_tokens)
    # In float64 everything is there a second time, twice as wide, next to what the parameters' dtype makes.
    rest -= 2 * taken
    wide = rest >= taken and evaluation.largest_evaluation(rest - FLOAT * step.parameters) >= fitting
    width = longest if config.model.data == "sentences" else 0
    return Budget(
        part if part < largest else 0, fitting if fitting < config.data.eval_tokens else 0, graphs, width, wide
    )


def least_memory(config: Config, data: DataSizes, device: str) -> Need:
    """The least a run takes: one sequence at a time, without graphs."""
    step, evaluation = _plans(config, data, device)
    _, longest, eval_tokens = _tokens(config, data, graphs=False)
    state = _state_bytes(config, step)
    rows = [(step, longest)]
    if config.model.data == "recordings":
        model = meta_model(config.model, data.num_inputs)
        lengths = sorted({_at_once(config, length) for length in data.lengths or (data.longest_train,)})
        rows = [(model.plan(1, length, device, config.train.precision).best, length) for length in lengths]
    training = [Need(state, plan.work_bytes, plan.token_bytes * length, False) for plan, length in rows]
    last = FLOAT * step.parameters  # at the end the best model is evaluated next to the last
    evaluating = Need(state + last, evaluation.eval_fixed_bytes, evaluation.eval_token_bytes * eval_tokens, True)
    return max(*training, evaluating, key=lambda least: least.total)


def meta_model(model: Any, num_inputs: int, clusters: Clusters | None = None) -> Model[Any, Any]:
    """A model of so many words or features for its sizes, without memory for its parameters.

    Without `clusters` a block model takes some of equal size; those found in a text have a larger largest one.
    """
    if model.has_clusters and (clusters is None or clusters.num_clusters != model.num_clusters):
        clusters = uniform_clusters(num_inputs, model.num_clusters, seed=0)
    found: Model[Any, Any] = sized_model(model, num_inputs, clusters=clusters)
    return found


def _plans(config: Config, data: DataSizes, device: str) -> tuple[Plan, Plan]:
    """The plan of a gradient step, and that of an evaluation, which drops nothing; of grammars, of the longest
    sentences, whose tokens take most. Where a batch may choose between two orders, of each size the larger."""
    model: Any = config.model
    dropouts = [field.name for field in dataclasses.fields(model) if field.name.endswith("_dropout")]
    whole = dataclasses.replace(model, **dict.fromkeys(dropouts, 0.0))
    shapes = (1, 1), (1, 1)
    if model.data == "sentences":
        largest, longest, held_out = _tokens(config, data, graphs=False)
        shapes = (max(1, largest // longest), longest), (1, held_out)
    sizes = ("fixed_bytes", "token_bytes", "eval_fixed_bytes", "eval_token_bytes")
    found = []
    for of, (rows, length) in zip((model, whole), shapes, strict=True):
        ways = meta_model(of, data.num_inputs, data.clusters).plan(rows, length, device, config.train.precision).ways
        ways = tuple(way for way in ways if model.plan in ("auto", way.order)) or ways
        found.append(ways[0]._replace(**{name: max(getattr(way, name) for way in ways) for name in sizes}))
    return found[0], found[1]


def _tokens(config: Config, data: DataSizes, *, graphs: bool) -> tuple[int, int, int]:
    """Padded tokens of the largest batch, of its longest row, and of the smallest batch of an evaluation."""
    own, kind = config.data, config.model.data
    if kind == "recordings":
        longest = _at_once(config, data.longest_train)
        if graphs:  # filled up to a shape; wider ones run without
            shapes = shapes_of(config)
            padded = padded_width(longest, shapes.multiple(longest))
            longest = padded if padded <= shapes.widest else longest
        return max(own.batch_tokens(longest), longest), longest, 1
    if own.batching == "streams":
        return own.num_streams * own.window, own.window, own.num_streams * own.window
    rounding = own.rounding if own.batching == "length" else 1
    if kind == "sentences" and config.train.graphs:
        rounding = max(rounding, TREE_WIDTH)
    longest = padded_width(data.longest_train, rounding)
    return own.batch_tokens(longest), longest, data.longest_held_out


def _at_once(config: Config, length: int) -> int:
    """Frames of a recording that are in one batch."""
    return min(length, config.data.window) if config.data.batching == "streams" else length


def _state_bytes(config: Config, plan: Plan) -> int:
    """Bytes that stay from update to update. An average is kept next to the parameters, which it swaps with."""
    return plan.state_bytes + (2 * FLOAT * plan.parameters if config.train.average else 0)


def _refusal(config: Config, data: DataSizes, device: str, memory: int, least: Need) -> str:
    own = f"train.memory is {memory / GIB:.3g} GiB" if config.train.memory else f"{device} has {memory / GIB:.3g} GiB"
    what = "evaluated" if least.evaluating else "trained"
    if config.model.data == "recordings":
        row = "one window" if config.data.batching == "streams" else "the longest recording"
    else:
        row = "one window of every stream" if config.data.batching == "streams" else "the longest sentence"
    return (
        f"{config.model.family} of {config.model.size} cannot be {what}: it needs "
        f"{least.total / GIB:.3g} GiB even with {row} alone, but {own}.\n"
        f"  Parameters, gradients and optimiser {least.state / GIB:.3g} GiB; distributions made of them "
        f"{least.work / GIB:.3g} GiB; {row} {least.sequence / GIB:.3g} GiB.\n"
        f"  What would fit: {', or '.join(_settings_that_fit(config, data, device, memory)) or NOTHING}."
    )


def longest_sentence(config: Config, num_words: int, device: str, memory: int) -> int:
    """The longest sentence a grammar can be trained on, one at a time, in so many bytes; 0 if there is none."""
    lengths = range(2, LONGEST)

    def num_bytes(length: int) -> int:
        return least_memory(config, DataSizes(num_words, length, length), device).total

    fitting = bisect_right(lengths, memory, key=num_bytes)
    return lengths[fitting - 1] if fitting else 0


def _settings_that_fit(config: Config, data: DataSizes, device: str, memory: int) -> list[str]:
    """Single settings with which the run would fit, sizes halved as often as it takes."""
    model, found = config.model, list[str]()

    def fits(section: str, **settings: object) -> bool:
        try:
            part = dataclasses.replace(getattr(config, section), **settings)
            return least_memory(dataclasses.replace(config, **{section: part}), data, device).total <= memory
        except DomainError:  # settings that do not go together
            return False

    limit = longest_sentence(config, data.num_inputs, device, memory) if model.data == "sentences" else 0
    held_out, train = data.longest_held_out, data.longest_train
    if limit and held_out > limit:
        found.append(f"a text without sentences of more than {limit:,} words (the longest has {held_out:,})")
    elif limit:
        found.append(f"data.max_length={limit} (the longest sentence has {train:,} words)")
    if model.data == "recordings" and fits("data", batching="streams"):
        found.append('data.batching="streams", which cuts recordings into windows')
    least = getattr(model, "num_clusters", 1) if model.has_clusters else 1
    for name in HALVED:
        size = getattr(model, name, 0) if readers(model, name) is None else 0
        while size > least:
            size = max(least, size // 2 // least * least)
            if fits("model", **{name: size}):
                found.append(f"model.{name}={size}")
                break
    if model.family == "hmm" and fits("model", family="lhmm"):
        found.append(f"model.family=lhmm (of rank {model.rank})")
    if model.data == "text" and not model.neural and fits("model", neural=True):
        found.append("model.neural=true")
    if device.startswith("cuda") and config.train.precision == "float32" and fits("train", precision="tf32"):
        found.append("train.precision=tf32")
    return found
