"""Frames whose columns have different observations: Gaussian ones, counts, symbols, independent given the state."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from rankfold.errors import DomainError
from rankfold.params.observations.protocol import Invalid, Observation, ObservationModule, Sizes, first_index
from rankfold.params.prior import Prior, Table


def kinds_of(columns: tuple[str, ...]) -> dict[str, list[int]]:
    """The columns of each kind, in order; a column of symbols is a kind of its own: "categorical:4" has four."""
    found: dict[str, list[int]] = {}
    for i, name in enumerate(columns):
        found.setdefault(f"{name} {i}" if name.startswith("categorical") else name, []).append(i)
    return found


def known_kind(name: str, catalogue: Mapping[str, type[ObservationModule]]) -> type[ObservationModule]:
    """The class of one kind of columns; raises on a name that is none."""
    kind, _, number = name.split(" ")[0].partition(":")
    found = catalogue.get(kind)
    if found is None or not found.joins or (bool(number) != found.symbols):
        welcome = [x + (":N" if catalogue[x].symbols else "") for x in catalogue if catalogue[x].joins]
        raise DomainError(f"a column is {name!r}, but columns are of {', '.join(welcome)} (N: how many symbols).")
    if number and not (number.isdigit() and int(number) >= 1):
        raise DomainError(f"a column is {name!r}, but the number of its symbols must be at least 1.")
    return found


class Product(NamedTuple):
    """The distributions of the columns of each kind."""

    parts: tuple[Observation, ...]
    columns: tuple[list[int], ...]
    symbols: tuple[bool, ...]

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t f" -> "b t z"
        found = [
            part.log_obs(values_of(frames[..., own], symbols))
            for part, own, symbols in zip(self.parts, self.columns, self.symbols, strict=True)
        ]
        return torch.stack(found).sum(0)

    def sample(self, states: Tensor, generator: torch.Generator | None) -> Tensor:  # "n" -> "n f"
        drawn = [part.sample(states, generator) for part in self.parts]
        width = sum(map(len, self.columns))
        kind = next((x.dtype for x in drawn if x.is_floating_point()), torch.get_default_dtype())
        found = torch.zeros(len(states), width, dtype=kind, device=states.device)
        for x, own in zip(drawn, self.columns, strict=True):
            found[:, own] = (x if x.ndim == 2 else x.unsqueeze(1)).to(kind)
        return found


def values_of(columns: Tensor, symbols: bool) -> Tensor:  # "... f" -> "... f", or "..." of symbols
    """Some columns as their observation takes them: symbols are whole numbers, -1 where missing."""
    if not symbols:
        return columns
    one = columns[..., 0]
    return torch.where(one.isnan(), -1.0, one).long()


class ProductObservation(ObservationModule):
    """Kinds of observations side by side, each with its own columns of a frame: `columns` names the kind of each."""

    joins = False
    capturable = False
    catalogue: Mapping[str, type[ObservationModule]] = {}  # set by the package, which knows all kinds

    def __init__(self, parts: Mapping[str, ObservationModule], columns: Mapping[str, list[int]]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts.values())
        self.names, self.columns = tuple(parts), tuple(columns.values())

    @classmethod
    def draw(cls, sizes: Sizes, generator: torch.Generator) -> Self:
        columns = kinds_of(sizes.columns)
        if len(sizes.columns) != sizes.num_features:
            raise DomainError(
                f"columns names {len(sizes.columns)} kinds of observations, but a frame has {sizes.num_features} "
                "columns."
            )
        parts = {}
        for name, own in columns.items():
            kind = known_kind(name, cls.catalogue)
            number = int(name.split(" ")[0].partition(":")[2]) if kind.symbols else len(own)
            part: Any = dataclasses.replace(sizes, columns=(), observations="gaussian", num_features=number)  # type: ignore[type-var]
            parts[name] = kind.draw(part, generator)
        return cls(parts, columns)

    @classmethod
    def residuals(cls, sizes: Sizes) -> int:
        kinds = {known_kind(name, cls.catalogue) for name in kinds_of(sizes.columns)}
        return max(kind.residuals(sizes) for kind in kinds)  # of all columns: at most as much is held

    @classmethod
    def first_invalid(cls, frames: Tensor, inside: Tensor, sizes: Sizes) -> Invalid | None:  # "... f", "..." bool
        for name, own in kinds_of(sizes.columns).items():
            part = known_kind(name, cls.catalogue)
            wrong, expected = part.invalid(frames[..., own]), part.values
            if part.symbols:
                most = int(name.split(" ")[0].partition(":")[2])
                wrong, expected = wrong | (frames[..., own] >= most), f"a whole number from 0 to {most - 1}"
            found = first_index(wrong & inside.unsqueeze(-1))
            if found is not None:
                kind = name.split(" ")[0].partition(":")[0]
                return Invalid((*found[:-1], own[found[-1]]), f"{kind} in this column, {expected}", part.remedy)
        return None

    @classmethod
    def on_scale(cls, frames: Tensor, columns: Sequence[str] = ()) -> Tensor:  # "n f" -> "n f"
        parts = [cls.catalogue[name.partition(":")[0]].on_scale(frames[:, i : i + 1]) for i, name in enumerate(columns)]
        return torch.cat(parts, 1)

    def coordinates(self, frames: Tensor) -> Tensor:  # "n f" -> "n g"
        """Those of all parts, side by side."""
        return torch.cat([part.coordinates(frames[:, own]) for part, own in self._each()], 1)

    def _each(self) -> list[tuple[Any, list[int]]]:
        return list(zip(self.parts, self.columns, strict=True))

    def forward(self, keep: Tensor | None = None) -> Product:
        parts = tuple(part(keep) for part, _ in self._each())
        return Product(parts, self.columns, tuple(part.symbols for part, _ in self._each()))

    def statistics(self, frames: Tensor, prior: Prior) -> Tensor:  # "n f" -> "n s"
        """Those of all parts, side by side."""
        found = []
        for part, own in self._each():
            one = part.statistics(values_of(frames[:, own], part.symbols), _prior_of(prior, own))
            found.append(one.double().unsqueeze(1) if one.ndim == 1 else one)
        return torch.cat(found, 1)

    def count(self, statistics: Tensor, posterior: Tensor) -> Tensor:  # "n s", "n z" -> "z s"
        found, at = [], 0
        for part, own in self._each():
            width = 1 if part.symbols else part.statistics(statistics.new_zeros(1, len(own)), Prior()).shape[1]
            one = statistics[:, at : at + width]
            found.append(part.count(one[:, 0].long() if part.symbols else one, posterior))
            at += width
        return torch.cat(found, 1)

    def maximise(self, counts: Tensor, prior: Prior) -> None:  # "z s"
        at = 0
        for (part, own), place in zip(self._each(), self._places(), strict=True):
            one = part.statistics(values_of(counts.new_zeros(1, len(own)), part.symbols), Prior())
            width = part.count(one, counts.new_zeros(1, len(counts))).shape[1]
            fixed = frozenset(name for name in part.tables() if self._name(name, own, place) in prior.fixed)
            part.maximise(counts[:, at : at + width], _prior_of(prior, own)._replace(fixed=fixed))
            at += width

    def log_prior(self, prior: Prior) -> Tensor:  # ""
        return torch.stack([part.log_prior(_prior_of(prior, own)) for part, own in self._each()]).sum()

    def rounding(self, prior: Prior) -> float:
        return float(sum(part.rounding(_prior_of(prior, own)) for part, own in self._each()))

    def keep_within(self, prior: Prior) -> None:
        for part, own in self._each():
            part.keep_within(_prior_of(prior, own))

    def move_to(self, frames: Any) -> None:  # "n f"
        for part, own in self._each():
            if not part.symbols:
                part.move_to(frames[:, own])

    def initialise(
        self, frames: Tensor, states: Tensor, means: Tensor, prior: Prior, rng: np.random.Generator, *, near: bool
    ) -> None:
        at = 0
        for part, own in self._each():
            x = frames[:, own].round() if part.symbols else frames[:, own]
            width = part.coordinates(frames[:1, own]).shape[1]
            its = means[:, at : at + width]
            part.initialise(values_of(x, part.symbols), states, its, _prior_of(prior, own), rng, near=near)
            at += width

    def tables(self) -> dict[str, Table]:
        """The tables of each part; names that several have end with the part's first column: "probability_3"."""
        found: dict[str, Table] = {}
        for (part, own), place in zip(self._each(), self._places(), strict=True):
            found |= {self._name(name, own, place): table for name, table in part.tables().items()}
        return found

    def fill(self, **tables: Tensor) -> None:
        for (part, own), place in zip(self._each(), self._places(), strict=True):
            mine = {name: tables[key] for name in part.tables() if (key := self._name(name, own, place)) in tables}
            if mine:
                part.fill(**mine)

    def _places(self) -> list[set[str]]:
        """Of each part the names of tables that other parts have, too."""
        names = [set(part.tables()) for part, _ in self._each()]
        return [{x for x in own if sum(x in other for other in names) > 1} for own in names]

    def _name(self, name: str, own: list[int], shared: set[str]) -> str:
        return f"{name}_{own[0]}" if name in shared else name

    @property
    def num_free(self) -> int:
        return sum(part.num_free for part, _ in self._each())


def _prior_of(prior: Prior, columns: list[int]) -> Prior:
    """The prior of some columns."""

    def some(x: Tensor | float) -> Tensor | float:
        return x[..., columns] if isinstance(x, Tensor) and x.ndim else x

    return prior._replace(
        centre=some(prior.centre),
        spread=some(prior.spread),
        min_variance=some(prior.min_variance),
        mean=some(prior.mean),
    )
