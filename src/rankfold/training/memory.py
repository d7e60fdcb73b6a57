"""How much of an update fits into memory at once, decided by the plan before a run starts; or why it cannot start.

The model is planned on torch's meta device: nothing is allocated to find out that it would not fit.
Read next: `planning/cost.py` for the bytes, `training/gradients.py`, which cuts batches accordingly.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch

from rankfold.data.clusters import Clusters, uniform_clusters
from rankfold.errors import DomainError, UnsupportedError
from rankfold.models.base import WordModel
from rankfold.models.catalog import sized_model
from rankfold.planning import Plan
from rankfold.planning.machine import available_bytes
from rankfold.training.config import Config
from rankfold.training.shapes import TREE_WIDTH, padded_width

GIB = 2**30
# Of a GPU's free memory: what its libraries take themselves, and what the allocator cannot use between two tensors.
MARGIN, MARGIN_SHARE = GIB, 0.05
FLOAT = 4
LONGEST = 2**16  # words of a sentence, more than which no limit is looked for
NOTHING = "no single size of the model, made smaller, does; take less of several, or of model.dim or the vocabulary"


class Text(NamedTuple):
    """What a plan needs to know of a text: the sizes that cannot be cut."""

    num_words: int
    longest_train: int  # tokens of a sentence
    longest_held_out: int
    clusters: Clusters | None = None


class Room(NamedTuple):
    """What a run may do at once."""

    part_tokens: int = 0  # padded tokens of a gradient; 0: whole batches
    eval_tokens: int = 0  # padded tokens of an evaluation; 0: as the recipe says
    graphs: bool = True  # whether captured graphs fit, whose memory stays theirs
    tree_width: int = 0  # of a grammar: `part_tokens` are of sentences so long; shorter ones take less a token


class Need(NamedTuple):
    """Bytes of a run whose batches are cut into single sentences."""

    state: int  # parameters, gradients, moments, average
    work: int  # what is made of the parameters once a batch
    sentence: int  # the longest
    evaluating: bool  # whether it is an evaluation that needs most

    @property
    def total(self) -> int:
        return self.state + self.work + self.sentence


def available(device: str, asked: float = 0.0) -> int | None:
    """The bytes a run may take: `asked` GiB, or if that is 0 what is free; None where nobody says."""
    if asked:
        return int(asked * GIB)
    if device.startswith("cuda"):
        if not torch.cuda.is_available():
            return None
        free, total = torch.cuda.mem_get_info(device)
        own = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(max(0, free + own - max(MARGIN, MARGIN_SHARE * total)))
    return available_bytes()


def sized(config: Any, num_words: int, clusters: Clusters | None = None) -> WordModel[Any, Any]:
    """A model for its sizes, without memory for its parameters.

    Without `clusters` a block model takes some of equal size; those found in a text have a larger largest one.
    """
    if config.has_clusters and (clusters is None or clusters.num_clusters != config.num_clusters):
        clusters = uniform_clusters(num_words, config.num_clusters, seed=0)
    model: WordModel[Any, Any] = sized_model(config, num_words, clusters=clusters)
    return model


def fit(config: Config, text: Text, device: str, memory: int | None) -> Room:
    """What fits into so many bytes; `UnsupportedError` with what would fit if not even one sentence does."""
    if memory is None:
        return Room()
    for graphs in (True, False) if device.startswith("cuda") and config.train.graphs else (False,):
        room = _room(config, text, device, memory, graphs=graphs)
        if room is not None:
            return room
    raise UnsupportedError(_refusal(config, text, device, memory))


def need(config: Config, text: Text, device: str) -> Need:
    """The least a run takes: one sentence at a time, without graphs."""
    step, evaluation = _plans(config, text, device)
    _, longest, eval_tokens = _sizes(config, text)
    state = state_bytes(config, step)
    training = Need(state, step.work_bytes, step.token_bytes * longest, False)
    beside = FLOAT * step.parameters  # at the end the best model is evaluated, beside the last
    evaluating = Need(state + beside, evaluation.eval_fixed_bytes, evaluation.eval_token_bytes * eval_tokens, True)
    return max(training, evaluating, key=lambda found: found.total)


def _room(config: Config, text: Text, device: str, memory: int, *, graphs: bool) -> Room | None:
    return room_in(memory, config, _plans(config, text, device), _sizes(config, text), graphs=graphs)


def room_in(
    memory: int, config: Config, plans: tuple[Plan, Plan], sizes: tuple[int, int, int], *, graphs: bool
) -> Room | None:
    """What fits into so many bytes; None if not even one row does. `plans` of a gradient step and of an evaluation.

    `sizes` are padded tokens: of the largest batch, of its longest row, of the smallest batch of an evaluation.
    """
    (step, evaluation), (largest, longest, eval_tokens) = plans, sizes
    if graphs and (config.data.batching == "unsorted" or config.model.data == "recordings"):
        largest = 16 * largest // 9  # what a shape of theirs may hold, filled up (`training/shapes.py`)
    rest = memory - state_bytes(config, step)
    # The memory of a graph stays its own, so an update that is repeated without graphs needs the same again.
    share = rest // 2 if graphs else rest
    part = min(largest, (share - step.work_bytes) // step.token_bytes)
    if part < longest:
        return None
    if graphs:
        rest -= step.work_bytes + part * step.token_bytes
    fitting = evaluation.largest_evaluation(rest - FLOAT * step.parameters)
    if fitting < eval_tokens:
        return None
    asked = config.data.eval_tokens
    width = longest if config.model.data == "sentences" else 0
    return Room(part if part < largest else 0, fitting if fitting < asked else 0, graphs, width)


def _plans(config: Config, text: Text, device: str) -> tuple[Plan, Plan]:
    """The plan of a gradient step, and that of an evaluation, which drops no states.

    Where a batch may choose between two orders, of each size the larger.
    """
    if config.model.data == "sentences":
        return _tree_plans(config, config.model, text, device)
    words: Any = config.model
    whole = dataclasses.replace(words, state_dropout=0.0, feature_dropout=0.0, logit_dropout=0.0)
    found = []
    for model in (words, whole):
        plans = sized(model, text.num_words, text.clusters).plan(1, 1, device, config.train.precision)
        ways = [way for way in plans.ways if model.plan in ("auto", way.order)] or list(plans.ways)
        sizes = ("fixed_bytes", "token_bytes", "eval_fixed_bytes", "eval_token_bytes")
        found.append(ways[0]._replace(**{name: max(getattr(way, name) for way in ways) for name in sizes}))
    return found[0], found[1]


def _tree_plans(config: Config, model: Any, text: Text, device: str) -> tuple[Plan, Plan]:
    """The plans of the longest sentences, in as many rows as a batch has: those of which a token takes most."""
    largest, longest, held_out = _sizes(config, text)
    grammar, precision = sized(model, text.num_words), config.train.precision
    ways = [
        grammar.plan(rows, length, device, precision).in_order(
            grammar.order(model.plan, rows, length, device, precision)
        )
        for rows, length in ((max(1, largest // longest), longest), (1, held_out))
    ]
    return ways[0], ways[1]


def _sizes(config: Config, text: Text) -> tuple[int, int, int]:
    """Padded tokens of the largest batch, of its longest row, and of the smallest batch of an evaluation."""
    data = config.data
    if data.batching == "streams":
        return data.num_streams * data.window, data.window, data.num_streams * data.window
    rounding = data.rounding if data.batching == "length" else 1
    if config.model.data == "sentences" and config.train.graphs:
        rounding = max(rounding, TREE_WIDTH)
    longest = padded_width(text.longest_train, rounding)
    return data.batch_tokens(longest), longest, text.longest_held_out


def state_bytes(config: Config, plan: Plan) -> int:
    """What stays from update to update. An average is kept beside the parameters, which it swaps with."""
    return plan.state_bytes + (2 * FLOAT * plan.parameters if config.train.average else 0)


def _refusal(config: Config, text: Text, device: str, memory: int) -> str:
    least = need(config, text, device)
    own = f"train.memory is {memory / GIB:.3g} GiB" if config.train.memory else f"{device} has {memory / GIB:.3g} GiB"
    what = "evaluated" if least.evaluating else "trained"
    row = "one window of every stream" if config.data.batching == "streams" else "the longest sentence"
    fitting = _what_fits(config, text, device, memory)
    return (
        f"{config.model.family} of {config.model.size} cannot be {what}: it needs "
        f"{least.total / GIB:.3g} GiB even with {row} alone, but {own}.\n"
        f"  Parameters, gradients and optimiser {least.state / GIB:.3g} GiB; distributions made of them "
        f"{least.work / GIB:.3g} GiB; {row} {least.sentence / GIB:.3g} GiB.\n"
        f"  What would fit: {', or '.join(fitting) or NOTHING}."
    )


def longest_sentence(config: Config, num_words: int, device: str, memory: int) -> int:
    """The longest sentence a grammar can be trained on, one at a time, in so many bytes; 0 if there is none."""
    low, high = 0, 2
    while high <= LONGEST and _takes(config, num_words, device, memory, high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _takes(config, num_words, device, memory, middle) else (low, middle)
    return low if low > 1 else 0


def _takes(config: Config, num_words: int, device: str, memory: int, length: int) -> bool:
    return need(config, Text(num_words, length, length), device).total <= memory


def _shorter(config: Config, text: Text, device: str, memory: int) -> list[str]:
    """The longest sentence that fits, where that is what is wrong."""
    limit = longest_sentence(config, text.num_words, device, memory)
    if not limit:
        return []
    if text.longest_held_out > limit:
        return [f"a text without sentences of more than {limit:,} words (the longest has {text.longest_held_out:,})"]
    return [f"data.max_length={limit} (the longest sentence has {text.longest_train:,} words)"]


def _what_fits(config: Config, text: Text, device: str, memory: int) -> list[str]:
    """Single settings with which the run would fit, sizes halved as often as it takes."""
    if config.model.data == "sentences":
        found = _shorter(config, text, device, memory)
        for name in ("num_nonterminals", "num_preterminals", "rank"):
            size = getattr(config.model, name)
            while size > 1 and not _fits(config, text, device, memory, **{name: size}):
                size //= 2
            if size > 1 and size < getattr(config.model, name):
                found.append(f"model.{name}={size}")
        return found
    found = []
    for name in ("num_states", "rank"):
        if name == "rank" and config.model.family in ("hmm", "block"):
            continue
        size, least = getattr(config.model, name), config.model.num_clusters if config.model.family == "block" else 1
        while size > least:
            size = max(least, size // 2 // least * least)
            if _fits(config, text, device, memory, **{name: size}):
                found.append(f"model.{name}={size}")
                break
    if config.model.family == "hmm" and _fits(config, text, device, memory, family="lhmm"):
        found.append(f"model.family=lhmm (of rank {config.model.rank})")
    if not config.model.neural and _fits(config, text, device, memory, neural=True):
        found.append("model.neural=true")
    tf32 = dataclasses.replace(config, train=dataclasses.replace(config.train, precision="tf32"))
    if device.startswith("cuda") and config.train.precision == "float32" and _fits(tf32, text, device, memory):
        found.append("train.precision=tf32")
    return found


def _fits(config: Config, text: Text, device: str, memory: int, **settings: object) -> bool:
    try:
        changed = dataclasses.replace(config, model=dataclasses.replace(config.model, **settings))  # type: ignore[arg-type]
    except DomainError:  # sizes that do not go together
        return False
    return need(changed, text, device).total <= memory
