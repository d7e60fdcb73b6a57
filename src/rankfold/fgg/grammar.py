"""A factor graph grammar (Definition 5 of Yang, Liu and Tu 2022): a structure and its numbers.

How observations are represented. A grammar may hold `observed`, integer tables by name, "n" for one sentence or "b
n" for a batch. A node whose `observed` is the cell `(name, i)` has the value `observed[name][..., i]`, and every
factor that touches it is sliced there: `emit[t, w]` at word 7 is `emit[:, 7]`, at the words of a batch `emit[:,
words]`, with a leading "b". So all instances of a rule share one tensor, and the structure is the same for all
sentences of a length. A constant in a rule is a node with an int. What cannot be a slice (a word missing in some
sentences only, a set of allowed words) is evidence: one more factor on the node, with a leading "b" axis where its
label `is_batched`. Sums are scalars, or "b" where anything has a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

import torch
from torch import Tensor, nn

from rankfold.errors import (
    DomainError,
    ShapeError,
    UnsupportedError,
    expect_device,
    expect_plain,
    expect_weights,
    may_look,
)
from rankfold.fgg.factors import Derived, Factor, Factored
from rankfold.fgg.hrg import HRG, inclusion, is_inclusion
from rankfold.fgg.hypergraph import Domain, Label, Rule, expect_known


@dataclass(frozen=True, eq=False)
class Grammar:
    """Definition 5: an HRG with F, which maps terminal labels to non-negative tensors over the domains of their type.

    A factor is a tensor, a module (called without arguments whenever its tensor is needed) or a `Factored`. Factors
    may be attached later (`with_factors`), and then tell the sizes of domains that are not known yet. Two grammars
    are of equal structure if their `hrg` are equal; grammars themselves compare by identity.

    `written` are the factors that come with the structure, weights in a text and the evidence of a query: they take the
    dtype and device of the others.
    """

    hrg: HRG
    factors: Mapping[str, Factor] = field(default_factory=dict)
    observed: Mapping[str, Tensor] = field(default_factory=dict)
    written: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        domains: tuple[Domain, ...],
        labels: tuple[Label, ...],
        rules: tuple[Rule, ...],
        start: str,
        factors: Mapping[str, Factor] | None = None,
        observed: Mapping[str, Tensor] | None = None,
    ) -> Grammar:
        """The grammar of these parts."""
        return cls(HRG(domains, labels, rules, start), factors or {}, observed or {})

    def __post_init__(self) -> None:
        given = {name: factor for name, factor in self.factors.items() if name not in self.written}
        dtype, device = _kind(given or self.written)
        factors = {**self.factors, **{name: x.to(device, dtype) for name, x in self.written.items()}}
        object.__setattr__(self, "hrg", _infer_sizes(self.hrg, factors))
        for name, own in (("factors", factors), ("observed", self.observed), ("written", self.written)):
            object.__setattr__(self, name, MappingProxyType(dict(own)))
        for name, factor in self.factors.items():
            if not isinstance(factor, nn.Module):
                _check_factor(self.hrg, name, factor)
        _check_observed(self.hrg, self.observed)
        expect_one_batch(self, {k: x for k, x in self.factors.items() if isinstance(x, Tensor)})

    @property
    def domains(self) -> tuple[Domain, ...]:
        """The domains, in order."""
        return self.hrg.domains

    @property
    def labels(self) -> tuple[Label, ...]:
        """The labels of edges, terminal and nonterminal."""
        return self.hrg.labels

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules, in order."""
        return self.hrg.rules

    @property
    def start(self) -> str:
        """The start symbol."""
        return self.hrg.start

    def domain(self, name: str) -> Domain:
        """The domain of that name."""
        return self.hrg.domain(name)

    def label(self, name: str) -> Label:
        """The label of that name."""
        return self.hrg.label(name)

    def size(self, domain: str) -> int:
        """The number of values of a domain."""
        return self.hrg.size(domain)

    def rules_of(self, label: str) -> tuple[Rule, ...]:
        """The rules with this nonterminal on the left."""
        return self.hrg.rules_of(label)

    def with_factors(self, factors: Mapping[str, Factor]) -> Grammar:
        """The same grammar with these factors added or replaced."""
        written = {name: x for name, x in self.written.items() if name not in factors}
        return Grammar(self.hrg, {**self.factors, **factors}, self.observed, written)

    def with_domains(self, sizes: Mapping[str, int]) -> Grammar:
        """The same grammar with these sizes of domains."""
        return Grammar(self.hrg.with_domains(sizes), self.factors, self.observed, self.written)

    def with_observed(self, observed: Mapping[str, Tensor]) -> Grammar:  # each "n" or "b n"
        """The same grammar with these observed values added or replaced."""
        return Grammar(self.hrg, self.factors, {**self.observed, **observed}, self.written)

    def plain(self) -> Grammar:
        """The same grammar with its rules written out: after a query it holds spans as a pattern."""
        return Grammar(self.hrg.plain, self.factors, self.observed, self.written) if self.hrg.has_spans else self

    def to(self, kind: torch.dtype | torch.device | str) -> Grammar:
        """The same grammar with its tensors in this dtype or on this device; modules are the caller's to move."""
        is_dtype = isinstance(kind, torch.dtype)
        kind = kind if isinstance(kind, torch.dtype) else expect_device(kind)
        factors = {name: _move(name, factor, kind) for name, factor in self.factors.items()}
        observed = self.observed if is_dtype else {name: table.to(kind) for name, table in self.observed.items()}
        moved = {name: x.to(kind) for name, x in self.written.items()}
        return Grammar(self.hrg, factors, observed, moved)

    def factor(self, label: str) -> Tensor | Factored:
        """The value of a factor: modules are called, inclusions of parts made; shape and weights are checked."""
        found = self.factors.get(label)
        value: Tensor | Factored
        if isinstance(found, nn.Module):
            value = found()
            _check_factor(self.hrg, label, value)
        elif found is not None:
            value = found
        elif is_inclusion(label):
            value = inclusion(self.hrg, label, dtype=self.dtype, device=self.device)
        else:
            expect_known(label, self.hrg._label, "the question", "label")
            raise DomainError(f"Factor {label!r} has no tensor yet.\n  Attach one: with_factors({{{label!r}: ...}}).")
        return value

    def tensor(self, label: str) -> Tensor:  # sizes of the label's domains; a leading "b" where it is batched
        """The tensor of a terminal label, a `Factored` written out."""
        value = self.factor(label)
        return value.to_dense() if isinstance(value, Factored) else value

    @cached_property
    def _kind(self) -> tuple[torch.dtype, torch.device]:
        return _kind(self.factors)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the factors."""
        return self._kind[0]

    @property
    def device(self) -> torch.device:
        """The device of the factors."""
        return self._kind[1]

    @property
    def batch(self) -> int | None:
        """The number of sentences, or None where nothing has a batch axis."""
        for table in self.observed.values():
            if table.ndim == 2:
                return int(table.shape[0])
        batched = [name for name in self.factors if self.label(name).is_batched]
        return max((int(self.factor(name).shape[0]) for name in batched), default=None)


def _kind(factors: Mapping[str, Factor]) -> tuple[torch.dtype, torch.device]:
    for factor in factors.values():
        source = factor.kind if isinstance(factor, Derived) else factor
        if isinstance(source, Tensor | Factored):
            return source.dtype, source.device
    for factor in factors.values():
        for parameter in factor.parameters() if isinstance(factor, nn.Module) else ():
            return parameter.dtype, parameter.device
    return torch.float32, torch.device("cpu")


def _move(name: str, factor: Factor, kind: torch.dtype | torch.device | str) -> Factor:
    if isinstance(factor, Derived):
        return Derived([_move(name, source, kind) for source in factor.sources], factor.inputs, factor.output)
    if isinstance(factor, Factored):
        return Factored(tuple((x.to(kind), axes) for x, axes in factor.factors))
    if isinstance(factor, nn.Module):
        raise UnsupportedError(
            f"Factor {name!r} is a module, and to() would change it for everyone who has it.\n"
            "  Move the module itself, module.to(...), before it is attached; its grammar follows."
        )
    return factor.to(kind)


def expect_one_batch(g: Grammar, tensors: Mapping[str, Tensor]) -> None:
    """Raise unless batched factors and observed tables have tables for as many sentences; one table serves all."""
    found = {f"the observed {name!r}": int(x.shape[0]) for name, x in g.observed.items() if x.ndim == 2}
    found |= {
        f"factor {name!r}": int(x.shape[0])
        for name, x in tensors.items()
        if name in g.hrg._label and g.label(name).is_batched
    }
    sizes = {name: size for name, size in found.items() if size != 1 or name.startswith("the observed")}
    if len(set(sizes.values())) > 1:
        (first, one), (other, two) = next((a, b) for a in sizes.items() for b in sizes.items() if a[1] != b[1])
        raise ShapeError(
            f"{first[0].upper()}{first[1:]} has a batch of {one} sentences, but {other} of {two}; all share one batch."
        )


def _infer_sizes(hrg: HRG, factors: Mapping[str, Factor]) -> HRG:
    """The structure with sizes that only the factors' shapes tell."""
    sizes: dict[str, int] = {}
    for name, factor in factors.items():
        expect_known(name, hrg._label, "the factors", "label")
        label = hrg._label[name]
        if not label.is_terminal:
            raise DomainError(f"Label {name!r} is a nonterminal: its value is computed, only terminals have factors.")
        if isinstance(factor, nn.Module):
            continue
        if not isinstance(factor, Tensor | Factored):
            raise UnsupportedError(
                f"Factor {name!r} is a {type(factor).__name__}, but must be a tensor, an nn.Module or a Factored.\n"
                "  Of an array: torch.as_tensor(array)."
            )
        shape = factor.shape[1:] if label.is_batched else factor.shape
        for domain, size in zip(label.type, shape, strict=False):
            if hrg.known_size(domain) is None and not hrg.domain(domain).parts:
                sizes.setdefault(domain, int(size))
    return hrg.with_domains(sizes) if sizes else hrg


def _check_factor(hrg: HRG, name: str, factor: Tensor | Factored) -> None:
    label = hrg.label(name)
    if not isinstance(factor, Tensor | Factored):
        raise UnsupportedError(f"The module of factor {name!r} gave a {type(factor).__name__}, but must give a tensor.")
    for x in (factor,) if isinstance(factor, Tensor) else (x for x, _ in factor.factors):
        expect_plain(x, name=f"Factor {name!r}")
    if factor.dtype not in (torch.float32, torch.float64):
        raise UnsupportedError(f"Factor {name!r} has dtype {factor.dtype}; float32 and float64 are supported.")
    if label.is_batched and isinstance(factor, Factored):
        raise UnsupportedError(
            f"Factor {name!r} is batched, and factored forms have no batch axis.\n  Give the tensor."
        )
    shape = tuple(factor.shape)
    if label.is_batched and shape[:1] == (0,):
        raise ShapeError(f"Factor {name!r} has shape {shape}: a batch has at least one sentence.")
    own = shape[label.is_batched :]
    sizes = [hrg.known_size(domain) for domain in label.type]
    fits = len(own) == len(sizes) and all(s is None or s == n for s, n in zip(sizes, own, strict=True))
    if not fits or len(shape) != label.arity + label.is_batched:
        wanted = ", ".join(
            ["b"] * label.is_batched
            + [f"{d} = {'?' if s is None else s}" for d, s in zip(label.type, sizes, strict=True)]
        )
        raise ShapeError(f"Factor {name!r} has shape {shape}, but its label wants ({wanted}).")
    check_weights(f"factor {name!r}", factor)


def check_weights(what: str, factor: Tensor | Factored) -> None:
    """Raise unless every weight is finite and at least 0, where it may be looked at."""
    remedy = "Of logarithms give the exponential: log_weights.exp()."
    if isinstance(factor, Tensor):
        expect_weights(factor, name=what, remedy=remedy)
    else:
        for tensor, axes in factor.factors:
            expect_weights(tensor, name=f"{what}, axes {axes},", remedy=remedy)


def _check_observed(hrg: HRG, observed: Mapping[str, Tensor]) -> None:
    for name, table in observed.items():
        if table.dtype != torch.int64 or table.ndim not in (1, 2):
            raise ShapeError(
                f"The observed {name!r} are {table.dtype} of shape {tuple(table.shape)}, but must be int64 of "
                "shape (n,) or (b, n)."
            )
    batches = {table.shape[0] for table in observed.values() if table.ndim == 2}
    if len(batches) > 1:
        raise ShapeError(f"The observed tables have batches of {sorted(batches)} sentences; all share one batch.")
    for name, (length, domains) in hrg.cells.items():
        if name not in observed:
            continue
        table = observed[name]
        if table.shape[-1] < length:
            raise ShapeError(f"The observed {name!r} have {table.shape[-1]} positions, but nodes look at {length}.")
        for domain in domains:
            size = hrg.known_size(domain)
            if size is not None and may_look(table) and bool(((table < 0) | (table >= size)).any()):
                raise DomainError(
                    f"The observed {name!r} hold values from {int(table.min())} to {int(table.max())}, but domain "
                    f"{domain!r} has the values 0 to {size - 1}."
                )
