"""The base of all models: distributions, the log-likelihood of a batch, costs for training, saving and loading.

A family gives `own_parts` (its distributions, without a batch) and `own_potentials` (with one).
Dropout happens exactly where a generator is given.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, Self, TypeVar, cast, overload

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rankfold.data.batch import Batch
from rankfold.data.frame_space import FrameSpace
from rankfold.data.trees import Tree
from rankfold.data.vocab import Vocabulary
from rankfold.errors import DomainError, ShapeError, UnsupportedError, expect_plain, may_look
from rankfold.models.config import PlanName
from rankfold.models.supervision import allowed_states
from rankfold.numerics.precision import Precision
from rankfold.numerics.shard import Shard
from rankfold.planning.cost import Plans
from rankfold.recursions import log_z, validate
from rankfold.recursions.ladder import Arithmetic
from rankfold.recursions.problem import validate_lengths

Parts = TypeVar("Parts")
Potentials = TypeVar("Potentials")
IDS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
TELLING = 1e-3  # nats: more is not rounding
Made = TypeVar("Made")
Sentences = list[Any] | tuple[Any, ...]  # of strings, or of lists of words


class HasFactors(Protocol):
    """An operator, or rules of trees."""

    @property
    def log_factors(self) -> tuple[bool, ...]: ...
    def factors(self) -> tuple[Tensor, ...]: ...


def linear(operators: Iterable[HasFactors]) -> list[Tensor]:
    """The factors of operators that are weights, not logarithms."""
    return [x for each in operators for x, is_log in zip(each.factors(), each.log_factors, strict=True) if not is_log]


class Shares(NamedTuple):
    """Probabilities computed in linear space, and logarithms of such probabilities."""

    linear: Sequence[Tensor]
    logs: Sequence[Tensor] = ()

    def near_zero(self) -> bool:
        """Whether an entry is 0 or below the dtype's smallest normal number."""
        tables = [*self.linear, *self.logs]
        if not tables or not may_look(tables[0]):
            return False
        tiny = torch.finfo(tables[0].dtype).tiny
        low = [x.detach().amin() < tiny for x in self.linear] + [x.detach().amin() < math.log(tiny) for x in self.logs]
        return bool(torch.stack(low).any())

    def lost(self, wide: Shares) -> bool:
        """Whether an entry that is near 0 here is a probability in float64."""
        tiny = torch.finfo((*self.linear, *self.logs)[0].dtype).tiny
        for own, other in zip(self.linear, wide.linear, strict=True):
            if bool(((own.detach() < tiny) & (other.detach() > 0)).any()):
                return True
        for own, other in zip(self.logs, wide.logs, strict=True):
            low, off = own.detach() < math.log(tiny), ~((own - other).detach().abs() <= TELLING)
            if bool((low & off & (other.detach() > float("-inf"))).any()):
                return True
        return False


class Context(NamedTuple):
    """What comes to a batch from outside of it."""

    carried: Any = None  # the state of its streams before it
    allowed: Tensor | None = None  # "b t z" bool
    generator: torch.Generator | None = None  # of a training step with dropout


class Model(nn.Module, ABC, Generic[Parts, Potentials]):
    """A distribution over sequences, with hidden paths or trees summed out exactly."""

    config: Any
    num_words: int  # or symbols, or features of a frame
    vocabulary: Vocabulary | None = None  # the words of the ids, where known
    space: FrameSpace | None = None  # scale and names of the features, where known
    is_bound: ClassVar[bool] = False  # whether `log_likelihood` is a lower bound of it
    denominator: ClassVar[str]  # the number that log-likelihoods are divided by, in words
    shard: Shard | None = None  # of the states, where other processes have the rest of them
    filler: float = 0.0  # the value of positions that only fill a shape
    shortest: ClassVar[int] = 1  # the length of a sequence that only fills a shape

    def parts(self, generator: torch.Generator | None = None) -> Parts:
        """The distributions the model is made of; with a generator, those of one training step with dropout.

        Where no gradient is to follow: in float64, if float32 would lose a probability.
        """
        found = self.own_parts(generator)
        return found if generator is not None or torch.is_grad_enabled() else self._wide(found)

    @abstractmethod
    def own_parts(self, generator: torch.Generator | None = None) -> Parts:
        """The same in the dtype of the parameters, in which small probabilities may underflow to 0."""

    def shares(self, parts: Parts) -> Shares:
        """The parts that are probabilities in linear space; none where all are logarithms."""
        return Shares(())

    def is_wide(self, parts: Parts) -> bool:
        """Whether parts are in float64 because float32 would lose some of them."""
        return any(x.dtype != next(self.parameters()).dtype for x in self.shares(parts).linear)

    def _wide(self, parts: Parts) -> Parts:
        return self.widen(parts, self.own_parts, self.shares)

    def capturable_parts(self, generator: torch.Generator | None = None) -> Parts:
        """The same distributions as a captured graph needs them: made without a look at values, in shapes that repeat.

        The same seed drops the same as in `parts`; states that are dropped may keep their number, without mass.
        """
        return self.own_parts(generator)

    def potentials(
        self,
        batch: Batch,
        *,
        parts: Parts | None = None,
        carried: Any = None,
        generator: torch.Generator | None = None,
        allowed: Tensor | None = None,
        **choices: Any,
    ) -> Potentials:  # allowed "b t z" bool
        """The weights of all hidden paths of a batch. `parts` saves computing them again for every batch.

        `carried` is the state of a stream after the last batch (see `carry`). `allowed` are the states a position may
        have, an exact constraint: log Z is then that of paths that keep to it. `choices` are those of some families:
        `plan`, what is summed out first, of rank-space HMMs and of grammars; `latent` of compound ones.
        """
        context = Context(carried, allowed, generator)
        self.expect_context(batch, context)
        return self.own_potentials(batch, self.parts(generator) if parts is None else parts, context, **choices)

    @abstractmethod
    def own_potentials(self, batch: Batch, parts: Parts, context: Context, *args: Any, **choices: Any) -> Potentials:
        """The same, of given parts and a context that fits the model."""

    def expect_context(self, batch: Batch, context: Context) -> None:
        """Raise unless the model can take the context; without an override, any but `allowed` states."""
        if context.allowed is not None:
            raise UnsupportedError(
                f"allowed states are for models whose positions have them: {self.config.family} is none."
            )

    def log_z(
        self,
        potentials: Potentials,
        arithmetic: Arithmetic = "scaled",
        precision: Precision = "float32",
        *,
        wide: bool = False,
    ) -> Tensor:  # "b"   float64
        """The log-probability of each sequence, -inf for one that is impossible. `wide`: in float64 from the first."""
        p: Any = potentials
        return log_z(validate(p).double() if wide else p, arithmetic, precision)

    def carry(self, potentials: Potentials, parts: Parts | None = None) -> Any:
        """The state of streams after a batch, detached. `parts`: the ones of this batch, if states were dropped."""
        raise UnsupportedError(f"{self.config.family} is of whole sentences: it carries nothing from one to the next.")

    def carried_of(self, tensors: Sequence[Tensor]) -> Any:
        """The carried state, from its tensors."""
        (one,) = tensors
        return one

    def draw_noise(self, num: int, generator: torch.Generator) -> Tensor | None:  # "b h"
        """What a training step draws for each of `num` sequences, besides dropout; None: nothing."""
        return None

    def begin_update(self, update: int) -> None:
        """Told before each update of training by gradients: how many are done."""

    def label_constraint(self, batch: Batch) -> Tensor | None:  # "b t z" bool
        """The states that the labels of a batch leave; None without labels."""
        return None if batch.labels is None else allowed_states(batch.labels, self.config.num_states)

    def log_likelihood(
        self,
        batch: Batch,
        *,
        parts: Parts | None = None,
        allowed: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:  # "b"   float64
        """The log-probability of each sequence of a batch; differentiable in the parameters."""
        self.expect_values(batch)
        if parts is None and generator is None:
            parts = self._wide(self.own_parts())
        found = self.potentials(batch, parts=parts, allowed=allowed, generator=generator)
        return self.log_z(found if generator is not None else self.wide_potentials(found, batch))

    def wide_potentials(self, potentials: Potentials, batch: Batch) -> Potentials:
        """The same in float64 where float32 lost a probability that no part holds; most models have none."""
        return potentials

    @abstractmethod
    def expect_values(self, batch: Batch) -> None:
        """Raise unless the model has a probability for the values of a batch."""

    def num_counted(self, batch: Batch) -> int:
        """The number of tokens or frames that the measure of a batch divides by; see `denominator`."""
        return batch.num_tokens

    def log_prior(self) -> Tensor:  # ""   float64
        """The log-prior of the parameters under the settings, up to a constant; 0 without a prior."""
        return torch.zeros((), dtype=torch.float64, device=self.device)

    @abstractmethod
    def plan(self, batch: int = 8, length: int = 32, device: str = "cpu", precision: Precision = "float32") -> Plans:
        """The cost of a gradient step, in operations and bytes, for each elimination order; the cheapest first."""

    def order(self, plan: PlanName, batch: int, length: int, device: str, precision: Precision) -> PlanName:
        """The elimination order that was asked for; "auto": the cheapest for a batch of this shape.

        In bf16 it is TF32's: the order is chosen where potentials are made, and they are never made in bfloat16.
        """
        if plan != "auto":
            return plan
        best = self.plan(batch, length, device, "tf32" if precision == "bf16" else precision).best
        return "rank" if best.order == "rank" else "state"

    def cheapest(self, plan: PlanName, batch: Batch) -> PlanName:
        """The `order` of a batch, in the precision that is set."""
        num, length = batch.shape
        precision: Precision = "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "float32"
        return self.order(plan, num, length, batch.values.device.type, precision)

    def sequence_bytes(self, length: int, *, gradients: bool) -> int:
        """Peak memory of one sequence of this length, tables made of the parameters not counted."""
        plan = self.plan(1, length, self.device.type).best
        return length * (plan.token_bytes if gradients else plan.eval_token_bytes)

    def widen(self, made: Made, make: Callable[[], Made], shares: Callable[[Made], Shares]) -> Made:
        """Distributions computed from the parameters, in float64 where float32 lost a probability below 1e-38.

        One look at each table; only where one holds something near 0, all are made in float64 and compared. Gradients
        reach the parameters either way. Without effect in float64, and while a CUDA graph is captured.
        """
        if next(self.parameters()).dtype != torch.float32 or not self._any(shares(made).near_zero()):
            return made
        wide = functional_call(_Made(self, make), _in_float64(self), ())
        return cast(Made, wide) if self._any(shares(made).lost(shares(cast(Made, wide)))) else made

    def _any(self, x: bool) -> bool:
        """Whether it is true of the states of any process that has some."""
        return x if self.shard is None else self.shard.any(x)

    def gather_carried(self, carried: Any) -> Any:
        """The state that streams carry, of all processes' states."""
        return carried

    def cut_carried(self, carried: Any) -> Any:
        """The state that streams carry, of this process's states."""
        return carried

    @property
    def num_parameters(self) -> int:
        """How many numbers there are to train."""
        return sum(x.numel() for x in self.parameters())

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    def save_pretrained(self, folder: str | Path, *, max_shard_bytes: int | None = None) -> None:
        """Write config.json, model.safetensors (in shards of at most `max_shard_bytes`) and, if known, what the inputs
        mean: vocab.json of words, frames.json of frames.

        A model that is there is replaced; where one of the files is not of a model of ours, `DataError`.
        """
        from rankfold.models.pretrained import expect_model_folder, save_model  # they import us

        expect_model_folder(Path(folder))
        save_model(self, folder, max_shard_bytes=max_shard_bytes)

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, device: str = "cpu", shards: int = 1) -> Self:
        """The model that `save_pretrained` wrote; with `shards`, this process's share of it."""
        from rankfold.models.pretrained import load_any

        model = load_any(folder, device=device, shards=shards)
        if not isinstance(model, cls):
            raise UnsupportedError(
                f"{folder} holds a {type(model).__name__}, not a {cls.__name__}.\n"
                f"  Load it with {type(model).__name__}.from_pretrained, or any model with rankfold.load."
            )
        return model

    @overload
    def score(self, text: str, *, end: bool = True) -> float | None: ...
    @overload
    def score(self, text: Sentences, *, end: bool = True) -> list[float | None]: ...
    def score(self, text: str | Sentences, *, end: bool = True) -> Any:
        """The log-probability of a sentence in nats, `<eos>` included where the model has one; as `rankfold score`.

        A string, or a list of sentences, each a string or a list of words; None where there is no word. With `end`
        false, of the text as the beginning of a sentence. Words that the vocabulary does not have count as `<unk>`.
        """
        from rankfold.models.strings import score_text  # it imports us

        return score_text(self, text, end=end)

    def predict(self, text: str = "", *, top: int = 10) -> list[tuple[str, float]]:
        """The likeliest next words after the beginning of a sentence, with probabilities; `<eos>` is its end."""
        from rankfold.models.strings import expect_vocabulary, predict, words_of

        words = words_of(text, expect_vocabulary(self, "predict"), ends=True)
        return [(word, math.exp(log_prob)) for word, log_prob in predict(self, words, top=top)]

    def generate(
        self,
        num: int = 1,
        *,
        prefix: str = "",
        max_length: int = 100,
        temperature: float = 1.0,
        top_k: int | None = None,
        no_unk: bool = False,
        seed: int | None = None,
    ) -> list[str]:
        """Independent sentences as strings; with a seed those that `rankfold sample --seed` prints, else new ones.

        At most `max_length` words after the prefix. A longer sentence is cut there; a grammar draws another instead.
        Each word is drawn from p(word | all words before it), `<eos>` a word like others, with `no_unk` without
        `<unk>`, restricted to its `top_k` likeliest words, to the power of 1 / temperature, and renormalised. Of a
        grammar that is done to p(word | its symbol), and trees are drawn as they are.
        """
        from rankfold.models.strings import expect_vocabulary, generate, seeded, word_choice, words_of

        vocabulary, generator = expect_vocabulary(self, "generate"), seeded(self, seed)
        begun, choice = words_of(prefix, vocabulary), word_choice(temperature, top_k, no_unk=no_unk)
        drawn = generate(self, num, prefix=begun, max_length=max_length, choice=choice, generator=generator)
        return [vocabulary.tokenizer.detokenize(found.words) for found in drawn]

    @overload
    def tag(self, text: str, *, method: Literal["posterior", "viterbi"] = ...) -> list[tuple[str, int]]: ...
    @overload
    def tag(self, text: Sentences, *, method: Literal["posterior", "viterbi"] = ...) -> list[list[tuple[str, int]]]: ...
    def tag(self, text: str | Sentences, *, method: Literal["posterior", "viterbi"] = "posterior") -> Any:
        """The words of a sentence with their hidden states, as `rankfold tag`; of a list of sentences a list.

        "posterior": the likeliest state of each word; "viterbi": the likeliest path. A rank-space model has ranks.
        -1 where a sentence is impossible.
        """
        from rankfold.models.strings import tag_text

        return tag_text(self, text, method=method)

    @overload
    def parse(
        self,
        text: str,
        *,
        decode: Literal["mbr", "viterbi"] = ...,
        labels: bool = False,
        brackets: Sequence[tuple[int, int]] | None = None,
    ) -> Tree | None: ...
    @overload
    def parse(
        self,
        text: Sentences,
        *,
        decode: Literal["mbr", "viterbi"] = ...,
        labels: bool = False,
        brackets: Sequence[Sequence[tuple[int, int]]] | None = None,
    ) -> list[Tree | None]: ...
    def parse(
        self,
        text: str | Sentences,
        *,
        decode: Literal["mbr", "viterbi"] = "mbr",
        labels: bool = False,
        brackets: Any = None,
    ) -> Any:
        """The tree of a sentence, by a grammar, as `rankfold parse`; None where there is no word.

        "mbr": the most brackets expected to be right; "viterbi": the most probable tree. `labels`: the grammar's
        symbols instead of X and T. `brackets`: spans `(i, j)`, words i to j - 1, that the tree must have; of a list of
        sentences a list each. Flat where the sentence is impossible.
        """
        from rankfold.models.strings import parse_text

        return parse_text(self, text, decode=decode, labels=labels, brackets=brackets)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the parameters."""
        return next(self.parameters()).dtype


class _Made(nn.Module):
    """The computation of distributions from parameters, as the call of a module."""

    def __init__(self, model: nn.Module, make: Callable[[], Any]) -> None:
        super().__init__()
        self.model, self.make = model, make

    def forward(self) -> Any:
        return self.make()


def _in_float64(model: nn.Module) -> dict[str, Tensor]:
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {f"model.{name}": x.double() if x.is_floating_point() else x for name, x in named.items()}


class WordModel(Model[Parts, Potentials]):
    """A distribution over sequences of word ids."""

    denominator = "words and one <eos> a sentence"

    @abstractmethod
    def query(self, potentials: Potentials) -> Any:
        """The object whose methods answer questions of a batch."""

    def forward(self, words: Tensor, lengths: Tensor | None = None) -> Any:  # "b t", "b"
        """The questions one may ask of these sequences: `.log_partition`, `.posterior()`, `.viterbi()`, ..."""
        return self.query(self.potentials(self.batch(words, lengths), parts=self._wide(self.own_parts())))

    @abstractmethod
    def predict_ids(self, batch: Batch | None = None, *, parts: Parts | None = None) -> Any:
        """The log-probability of every word as the next one, after each sequence of a batch (or at the start)."""

    def batch(self, words: Tensor, lengths: Tensor | None = None) -> Batch:  # "b t", "b"
        """Word ids as a batch on the model's device; raises on anything else."""
        if not isinstance(words, Tensor) or words.dtype not in IDS or words.ndim != 2 or not words.numel():
            what = f"shape {tuple(words.shape)}, {words.dtype}" if isinstance(words, Tensor) else type(words).__name__
            raise ShapeError(f'words is {what}, but integer ids "b t" were expected, at least one.')
        expect_plain(words, name="words")
        device = self.device
        lengths, _ = validate_lengths(lengths, len(words), words.shape[1], torch.empty(0, device=device))
        words = words.to(device).long()
        inside = torch.arange(words.shape[1], device=device) < lengths[:, None]
        words = torch.where(inside, words, 0)
        batch = Batch(words, lengths)
        self.expect_values(batch)
        return batch

    def expect_values(self, batch: Batch) -> None:
        """Raise on ids that the model does not know."""
        words = batch.values
        if not may_look(words):
            return
        low, high = int(words.min()), int(words.max())
        if low < 0 or high >= self.num_words:
            raise DomainError(
                f"a word has the id {low if low < 0 else high}, but this model knows 0 to {self.num_words - 1}."
            )
