"""The likelihood of sentences and recordings, and a check of a sample in log arithmetic."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from rankfold.data.batch import Batch, length_batches, streams
from rankfold.data.frames import Frames
from rankfold.models.base import Model, WordModel
from rankfold.models.config import NATS, PERPLEXITY, DataKind, Measure
from rankfold.models.parsing import tree_batches
from rankfold.numerics.precision import Precision, matmul_precision, parameter_precision
from rankfold.training.config import DataConfig
from rankfold.training.distributed import alone, num_processes, own_rows, rank, shared_total, total_of
from rankfold.training.recordings import whole_recordings

BYTES = 2**31  # of a batch's own tensors
FRAME_BYTES, FRAME_TABLES = 2**30, 6  # of recordings: tables "b t z" that an evaluation holds at once, in float64


class Evaluation(NamedTuple):
    """exp(-log_likelihood / tokens): tokens are words and one end per sentence, which grammars count but do not make;
    of recordings the frames that are not missing.
    """

    log_likelihood: float  # nats, over all sequences
    tokens: int
    sentences: int  # or recordings
    is_bound: bool = False  # whether the log-likelihood is a lower bound of it, and the perplexity an upper one

    def value(self, measure: Measure) -> float:
        """The value of a measure: perplexity, or nats per frame."""
        return measure(self.log_likelihood, self.tokens)

    @property
    def nats(self) -> float:
        """The negative log-likelihood per token, or per frame."""
        return self.value(NATS)

    @property
    def perplexity(self) -> float:
        """The perplexity; infinite where a sentence is impossible, or out of a float's range."""
        return self.value(PERPLEXITY)


Data = Iterable[Sequence[int]] | Frames  # sentences as ids, or recordings


def evaluate(
    model: Model[Any, Any],
    data: Data,
    config: DataConfig | None = None,
    *,
    parts: Any = None,
    precision: Precision = "float32",
    shared: bool = False,
    **options: Any,
) -> Evaluation:
    """The log-likelihood of sentences or recordings, each by itself, or (streams) of one text with the state carried.

    Recordings longer than a batch of `config.eval_tokens` frames are cut into windows, whose log-likelihoods add up
    exactly. `shared`: all processes of a run call this, and share out the batches.
    `options` go to the model's `potentials`: plan="rank" for a rank-space model, for one.
    """
    data = data if isinstance(data, Frames) else list(data)
    num_tokens = 0

    def log_likelihood() -> float:
        nonlocal parts, num_tokens
        total, carried = 0.0, None
        with torch.no_grad(), matmul_precision(parameter_precision(precision), model.device):
            parts = model.parts() if parts is None else parts
            batches = evaluation_batches(model, data, config or DataConfig())
            for batch in _own_batches(batches, model, config or DataConfig()) if shared else batches:
                if batch.first:
                    carried = None
                p = model.potentials(batch.to(model.device), parts=parts, carried=carried, **options)
                total += float(model.log_z(p, precision=precision).sum())
                num_tokens += model.num_counted(batch)
                carried = None if batch.last else model.carry(p)
        return total

    if not shared:
        return Evaluation(log_likelihood(), num_tokens, len(data), model.is_bound)
    total = shared_total(log_likelihood)
    return Evaluation(total, int(total_of([float(num_tokens)])[0]), len(data), model.is_bound)


def _own_batches(batches: Iterable[Batch], model: Model[Any, Any], config: DataConfig) -> Iterator[Batch]:
    """The batches of this process: its streams of a text, or every n-th sequence of batches that carry a state."""
    if alone():
        yield from batches
        return
    if config.batching == "streams" and model.config.data == "text":
        num = 0
        for batch in batches:
            num = num or len(batch.lengths)
            own = own_rows(batch, num)
            if len(own.lengths):
                yield own
        return
    begun = -1
    for batch in batches:
        begun += batch.first
        if begun % num_processes() == rank():
            yield batch


def log_check(
    model: WordModel[Any, Any], sentences: Sequence[Sequence[int]], *, num_sentences: int = 8, num_tokens: int = 256
) -> tuple[float, int]:
    """The largest difference between the fast arithmetic and logarithms in float64, in nats per token; and of how many.

    The distributions, too, are computed in float64, so probabilities that underflow in float32 show as a difference.
    Logarithms are slow: a few sentences from all over the text, cut to `num_tokens` tokens in all; of grammars to a
    quarter.
    """
    rows: list[Sequence[int]] = []
    num_tokens = num_tokens // 4 if model.config.data == "sentences" else num_tokens
    for row in sentences[:: max(1, len(sentences) // num_sentences)][:num_sentences]:
        room = num_tokens - sum(map(len, rows))
        if room >= model.shortest:
            rows.append(row[:room])
    worst = 0.0
    wide = copy.deepcopy(model).double()
    with torch.no_grad():
        parts, wide_parts = model.parts(), wide.parts()
        for row in rows:
            batch = model.batch(torch.tensor([list(row)]))
            fast = model.log_z(model.potentials(batch, parts=parts))
            slow = wide.log_z(wide.potentials(batch, parts=wide_parts), "log")
            gap = 0.0 if bool((fast == slow).all()) else float((fast - slow).abs().max())
            worst = max(worst, gap / len(row))
    return worst, len(rows)


def evaluation_batches(model: Model[Any, Any], data: Any, config: DataConfig) -> Iterable[Batch]:
    """Batches without gradients: fewer tokens where one of this model takes much memory."""
    kind: DataKind = model.config.data
    if kind == "sentences":
        return tree_batches(model, data, config.eval_tokens)
    if kind == "recordings":
        tokens = min(config.eval_tokens, FRAME_BYTES // (8 * FRAME_TABLES * model.config.num_states))
        return whole_recordings(data, max(1, tokens), symbols=model.config.observation.symbols)
    if config.batching == "streams":
        num_tokens = sum(map(len, data))
        return streams(data, min(config.num_streams, num_tokens), config.window)
    return length_batches(data, max(1, min(config.eval_tokens, BYTES // model.plan(1, 1).best.token_bytes)))
