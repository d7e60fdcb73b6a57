"""A recipe: everything a training run depends on besides its data, as one tree of records.

Budgets are in updates, not minutes, so that runs repeat.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from rankfold.data.frame_files import Header
from rankfold.data.frame_space import Standardise
from rankfold.data.frames import Missing
from rankfold.errors import DomainError
from rankfold.models.config import AnyConfig, Family, FrameConfig, ModelConfig
from rankfold.numerics.precision import Precision
from rankfold.settings import check_choices

Batching = Literal["length", "equal", "unsorted", "streams"]
WordTags = Literal["all", "penn"]
MOST_ACCUMULATED = 2**16
Schedule = Literal["constant", "linear", "cosine", "plateau"]


@dataclass(frozen=True)
class DataConfig:
    """Vocabulary and batches."""

    max_vocabulary: int | None = None  # words kept, <unk> and <eos> included; None: all
    min_count: int = 1  # rarer words become <unk>
    lower: bool = False  # words are looked up in lower case; text that has N for numbers must stay as it is
    numbers: bool = False  # digits, with the commas and points after them, are looked up as N
    word_tags: WordTags = "all"  # grammars, of trees: whose words count; "penn": those of Penn tags for words
    max_length: int = 0  # longer training sentences are left out, and counted; 0: none. Evaluations take all
    batching: Batching = "length"  # like lengths together; equal; shuffled as they come; or one text, carried on
    tokens: int = 512  # of a batch, padding included; 0: any number (length and equal, with sentences)
    sentences: int = 0  # of a batch at most (length, equal); 0: any number
    curriculum_start: int = 0  # longest sentence of the first epoch; 0: all sentences from the start
    curriculum_step: int = 1  # by how much the longest grows from epoch to epoch
    rounding: int = 1  # lengths are padded up to a multiple of this (length)
    num_streams: int = 16  # streams
    window: int = 32  # streams: tokens of each a batch
    eval_tokens: int = 4096  # of a batch when evaluating
    standardise: Standardise = "train"  # frames, gaussian: whose mean and deviation bring features onto one scale
    smooth: int = 1  # frames, gaussian: each is the mean of so many around it, an odd number; before it is standardised
    labelled: int = 0  # frames: so many training recordings, the first, keep their labels, which bind their states
    unlabelled: bool = True  # frames: whether recordings without labels are trained on where others are labelled
    parts: int = 1  # frames: so many states for each label, for the equal parts of its segments, in their order
    missing: Missing = "error"  # frames: a row with some values missing: an error, a missing row, or summed out exactly
    header: Header = "auto"  # frames: whether the first line of a .csv is names; "auto": if it holds no number

    def __post_init__(self) -> None:
        check_choices(self)
        _expect_at_least(self, 1, "min_count", "rounding", "num_streams", "window", "eval_tokens", "parts")
        _expect_at_least(
            self, 0, "tokens", "sentences", "max_length", "curriculum_start", "curriculum_step", "labelled"
        )
        if self.parts > 1 and not self.labelled:
            raise DomainError(
                f"parts is {self.parts}, but labelled is 0: only labelled segments have parts.\n"
                "  Set labelled to the number of recordings whose labels count, or parts=1."
            )
        if self.smooth < 1 or self.smooth % 2 == 0:
            raise DomainError(f"smooth is {self.smooth}, but must be an odd number of frames; 1: as they are.")
        if self.max_vocabulary is not None:
            _expect_at_least(self, 2, "max_vocabulary")
        if not self.tokens and not (self.sentences and self.batching in ("length", "equal")):
            raise DomainError(
                'tokens is 0, but must be at least 1, unless "length" or "equal" batches have a limit in sentences.'
            )
        if self.batching == "equal" and not self.sentences:
            raise DomainError('batching is "equal", but sentences, the largest number of them in a batch, is 0.')
        if self.sentences and self.batching not in ("length", "equal"):
            raise DomainError(f'sentences is {self.sentences}, but batching is "{self.batching}": "length" or "equal".')
        if self.tokens and self.rounding > self.tokens:
            raise DomainError(f"rounding is {self.rounding}, but a batch has only tokens = {self.tokens} in all.")

    def batch_tokens(self, longest: int) -> int:
        """Padded tokens of the largest batch of a text whose longest sentence is so long."""
        if self.batching == "streams":
            return self.num_streams * self.window
        limits = [limit for limit in (self.tokens, self.sentences * longest) if limit]
        return max(min(limits), longest)

    def longest_at(self, epoch: int) -> int | None:
        """The longest training sentence of an epoch, as the curriculum has it; None: any."""
        return self.curriculum_start + epoch * self.curriculum_step if self.curriculum_start else None


@dataclass(frozen=True)
class TrainConfig:
    """Optimisation, evaluation, checkpoints and logs."""

    updates: int = 4000
    seed: int = 1
    optimizer: Literal["adamw", "adam", "em"] = "adamw"  # em: free tables; an update is one step over all data
    momentum: float = 0.0  # em: above 0, an update is a step over its own batches; of running counts, so much stays
    smoothing: float = 0.0  # em: added to the count of every start, transition, duration and symbol
    lr: float = 3e-3
    betas: tuple[float, ...] = (0.9, 0.999)
    weight_decay: float = 0.0
    clip: float = 5.0  # largest norm of the gradient; 0: none
    accumulate: int = 1  # batches an update
    schedule: Schedule = "linear"
    warmup: int = 0  # updates in which the rate rises from 0
    min_lr: float = 0.0  # where linear and cosine end, and below which plateau does not go
    plateau_factor: float = 0.25  # plateau: the rate is multiplied by this
    plateau_patience: int = 4  # plateau: after more than so many evaluations without a better one
    plateau_threshold: float = 0.0  # plateau: how much better, as a share of the log-likelihood; below 0: or worse
    average: float = 0.0  # evaluate and save a running average of the parameters with this decay; 0: none
    patience: int = 0  # stop after so many evaluations without a better one; 0: never
    evaluate_every: int = 500  # updates
    checkpoint_every: int = 250  # updates
    log_every: int = 50  # updates
    precision: Precision = "float32"  # of matrix products
    device: Literal["auto", "cpu", "cuda"] = "auto"
    graphs: bool = True  # on a GPU: capture the gradient (em, words: the counts) of each shape of batch
    memory: float = 0.0  # GiB a run may take: batches are computed in parts that fit; 0: what the device has free
    checkpoint_shard_mb: float = 0.0  # checkpoints, best model: files of at most so many million bytes; 0: one each
    optimizer_state: Literal["float32", "bf16"] = "float32"  # of the optimiser's moments in a checkpoint
    tensorboard: bool = False

    @property
    def shard_bytes(self) -> int:
        """The limit of a file of weights; 0: none."""
        return int(self.checkpoint_shard_mb * 1e6)

    def __post_init__(self) -> None:
        check_choices(self)
        _expect_at_least(self, 1, "updates", "accumulate", "evaluate_every", "checkpoint_every", "log_every")
        _expect_at_least(self, 0, "seed", "clip", "weight_decay", "warmup", "min_lr", "plateau_patience", "patience")
        _expect_at_least(self, 0, "memory", "checkpoint_shard_mb", "smoothing")
        if self.accumulate > MOST_ACCUMULATED:
            raise DomainError(
                f"accumulate is {self.accumulate:,}, but the batches of an update, at most {MOST_ACCUMULATED:,}, are "
                "held at once."
            )
        if not 0 <= self.momentum < 1:
            raise DomainError(f"momentum is {self.momentum}, but must be at least 0 and below 1.")
        if self.momentum and self.optimizer != "em":
            raise DomainError(
                f'momentum is {self.momentum}, but optimizer is "{self.optimizer}": it is of mini-batch EM.\n'
                "  Leave it out, or set optimizer to em; the first of `betas` is the momentum of Adam."
            )
        if not self.lr > 0:
            raise DomainError(f"lr is {self.lr}, but a learning rate is above 0.")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise DomainError(f"betas is {list(self.betas)}, but two numbers, at least 0 and below 1, were expected.")
        if not 0 < self.plateau_factor < 1:
            raise DomainError(f"plateau_factor is {self.plateau_factor}, but must be above 0 and below 1.")
        if not -1 < self.plateau_threshold < 1:
            raise DomainError(f"plateau_threshold is {self.plateau_threshold}, but must lie between -1 and 1.")
        if not 0 <= self.average < 1:
            raise DomainError(f"average is {self.average}, but must be at least 0 and below 1.")
        if self.seed >= 2**63:
            raise DomainError(f"seed is {self.seed}, but must be below 2**63.")


@dataclass(frozen=True)
class Config:
    """A whole recipe: `[model]`, `[data]`, `[train]`."""

    model: AnyConfig | FrameConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        model, streams, em = self.model, self.data.batching == "streams", self.train.optimizer == "em"
        if em and model.data != "recordings":
            self._expect_free_tables(model, streams=streams)
        if model.data == "recordings":
            self._expect_recordings(model, em=em, streams=streams)
        elif streams and model.data == "sentences":
            raise DomainError(
                'data.batching is "streams", but a grammar is of sentences and carries nothing to the next.\n'
                '  Set data.batching to "length", "equal" or "unsorted".'
            )
        elif streams and not model.carries:
            raise DomainError(
                'data.batching is "streams" with model.state_dropout above 0: a carried state would be of states that '
                "the next\n  step has dropped. Set model.state_dropout=0, or batch by sentences."
            )

    def _expect_free_tables(self, model: Any, *, streams: bool) -> None:
        if model.data != "text" or model.neural:
            raise DomainError(
                f'train.optimizer is "em", but model.family is "{model.family}"'
                f"{' with networks' if model.neural else ''}: EM of words sets the free tables of hidden Markov models "
                f"({', '.join(get_args(Family))}).\n"
                '  Set model.neural=false and such a family, or train.optimizer="adamw".'
            )
        dropped = model.state_dropout or model.feature_dropout or model.logit_dropout
        if dropped or streams:
            raise DomainError(
                'train.optimizer is "em", which is for whole sentences and tables without dropout.\n'
                '  Set dropouts to 0 and data.batching="length", or train.optimizer="adamw".'
            )

    def _expect_recordings(self, model: Any, *, em: bool, streams: bool) -> None:
        if self.data.labelled and model.state_dropout:
            raise DomainError(
                f"data.labelled is {self.data.labelled} with model.state_dropout above 0: the state of a label would "
                "be dropped.\n  Set model.state_dropout=0."
            )
        if em and (model.neural or model.state_dropout or model.feature_dropout or streams):
            raise DomainError(
                'train.optimizer is "em", which is for whole recordings and free tables without dropout.\n'
                '  Set model.neural=false, dropouts 0 and data.batching="length", or train.optimizer="adam".'
            )


def _expect_at_least(config: object, least: int, *names: str) -> None:
    for name in names:
        if not getattr(config, name) >= least:  # NaN is not
            raise DomainError(f"{name} is {getattr(config, name)}, but must be at least {least}.")
