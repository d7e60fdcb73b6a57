"""Perplexity, with its denominator, and a check of a sample in log arithmetic. Read next: `models/base.py`."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from rankfold.data.batch import Batch, Batches, length_batches, streams
from rankfold.models.catalog import AnyModel
from rankfold.models.grammar_config import GrammarConfig
from rankfold.models.sequence_model import SequenceModel
from rankfold.numerics.precision import Precision, matmul_precision, parameter_precision
from rankfold.training.config import DataConfig

BYTES = 2**31  # of a batch's own tensors
DENOMINATOR = "words and one <eos> a sentence"
TREE_DENOMINATOR = "words + sentences, although no end is generated"


class Evaluation(NamedTuple):
    """exp(-log_likelihood / tokens): tokens are words and one end a sentence, which grammars count but do not make."""

    log_likelihood: float  # nats, over all sentences
    tokens: int
    sentences: int
    is_bound: bool = False  # whether the log-likelihood is a lower bound of it, and the perplexity an upper one

    @property
    def nats(self) -> float:
        """The negative log-likelihood of a token, or of a frame."""
        return -self.log_likelihood / self.tokens

    @property
    def perplexity(self) -> float:
        """The perplexity; infinite where a sentence is impossible, or out of a float's range."""
        exponent = -self.log_likelihood / self.tokens
        return math.exp(exponent) if exponent < 700 else math.inf


def evaluate(
    model: AnyModel,
    sentences: Iterable[Sequence[int]],
    config: DataConfig,
    *,
    parts: Any = None,
    precision: Precision = "float32",
    **options: Any,
) -> Evaluation:
    """The log-likelihood of a text: sentences on their own, or (streams) one text with the state carried along.

    `options` go to the model's `potentials`: plan="rank" for a rank-space model, for one.
    """
    rows = list(sentences)
    total, tokens = 0.0, 0
    with torch.no_grad(), matmul_precision(parameter_precision(precision), model.device):
        parts = model.parts() if parts is None else parts
        carried = None
        for batch in _batches(model, rows, config):
            p = model.potentials(batch.to(model.device), parts=parts, carried=carried, **options)
            total += float(model.log_z(p, precision=precision).sum())
            tokens += num_counted(model, batch)
            if config.batching == "streams":
                assert isinstance(model, SequenceModel)  # the recipe saw to it
                carried = model.carry(p)
    return Evaluation(total, tokens, len(rows), model.is_bound)


def num_counted(model: AnyModel, batch: Batch) -> int:
    """What a perplexity divides by: the tokens of a batch, of a grammar's also one a sentence, as published."""
    return batch.num_tokens + (len(batch.values) if isinstance(model.config, GrammarConfig) else 0)


def denominator(model: AnyModel) -> str:
    """The name of what a perplexity divides by."""
    return TREE_DENOMINATOR if isinstance(model.config, GrammarConfig) else DENOMINATOR


def log_check(
    model: AnyModel, sentences: Sequence[Sequence[int]], *, num_sentences: int = 8, num_tokens: int = 256
) -> tuple[float, int]:
    """The largest difference, in nats a token, between the fast arithmetic and logarithms in float64, and of how many.

    The latter's distributions are made of the parameters in float64, too: what float32 has no number for is found out.
    Logarithms are slow: a few sentences from all over the text, cut to `num_tokens` tokens in all; of grammars to a
    quarter.
    """
    rows: list[Sequence[int]] = []
    shortest = 1
    if isinstance(model.config, GrammarConfig):
        num_tokens, shortest = num_tokens // 4, 2
    for row in sentences[:: max(1, len(sentences) // num_sentences)][:num_sentences]:
        room = num_tokens - sum(map(len, rows))
        if room >= shortest:
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


def fitting_tokens(model: AnyModel, tokens: int) -> int:
    """The budget of a batch without gradients: fewer where a token of this model takes much memory."""
    return max(1, min(tokens, BYTES // model.plan(1, 1).best.token_bytes))


def tree_batches(
    model: AnyModel, rows: Sequence[Sequence[int]], tokens: int = 4096, *, memory: int = BYTES, gradients: bool = False
) -> Batches:
    """Batches of like lengths for a grammar, whose memory grows with the square of a length: at least one sentence.

    `gradients`: room for an outside pass, too, which span posteriors need.
    """

    def cost(width: int) -> int:
        plan = model.plan(1, width, model.device.type).best
        own = plan.token_bytes if gradients else plan.eval_token_bytes
        return max(1, own * width, width * memory // tokens)

    return length_batches(rows, memory, cost=cost)


def _batches(model: AnyModel, rows: list[Sequence[int]], config: DataConfig) -> Iterable[Batch]:
    if isinstance(model.config, GrammarConfig):
        return tree_batches(model, rows, config.eval_tokens)
    if config.batching == "streams":
        num_tokens = sum(map(len, rows))
        return streams(rows, min(config.num_streams, num_tokens), config.window)
    return length_batches(rows, fitting_tokens(model, config.eval_tokens))
