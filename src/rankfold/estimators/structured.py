"""HMMs whose states have a structure of their own: several chains side by side, or chains that call chains.

Both are one HMM of all joint states or leaves, so every answer is exact, and EM counts the tables that they share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from rankfold.errors import DomainError
from rankfold.estimators.hidden_markov import HMM, Fitted
from rankfold.estimators.known_tables import (
    TABLES,
    MissingTableError,
    fill_start,
    known_tables,
    observation_sizes,
    own_names,
    public_name,
)
from rankfold.models.catalog import build_model
from rankfold.models.config import FrameConfig
from rankfold.models.frame_model import FrameModel
from rankfold.params.dynamics.hierarchy import Tree
from rankfold.params.prior import Prior


@dataclass(eq=False, repr=False, kw_only=True)
class Structured(Fitted):
    """The methods of both: everything `HMM` can do, with other tables of the start and of the transitions."""

    fixed: Sequence[str] | None = None
    n_init: int = 4
    max_iter: int = 200

    def structure(self) -> dict[str, Any]:
        """The number of states, and the field of a configuration that says how they are made."""
        raise NotImplementedError

    def _fit_params(self) -> dict[str, Any]:
        return {**HMM().get_params(), **self.get_params(), **self.structure()}

    def _known_model(self, params: Mapping[str, Any], tables: Mapping[str, Any]) -> FrameModel:
        width, sizes = observation_sizes(params, {name: np.shape(x) for name, x in tables.items()})
        made = {name: params[name] for name in ("chains", "parents") if name in params}
        config = FrameConfig("frame_hmm", num_states=params["n_states"], num_features=width, min_variance=0.0,
                             **made, **sizes)  # fmt: skip
        model = build_model(config).to(torch.device(params["device"]), getattr(torch, params["dtype"]))
        known = known_tables(model)
        if missing := sorted(set(known) - set(own_names(tables, known, TABLES))):
            needed = ", ".join(map(public_name, known))
            raise MissingTableError(f"{public_name(missing[0])!r} is not given, but this model needs {needed}.")
        fill_start(model, tables, Prior(), TABLES)
        return model

    @classmethod
    def from_tables(cls, structure: Any, *, symbols: Sequence[Any] | None = None, **given: Any) -> Self:  # type: ignore[override]
        """The estimator with known tables by the names of `tables_`, as if it had been fitted; a fit begins with them.

        `structure` is the first argument of the estimator; further arguments are its parameters.
        """
        names = set(cls._names())
        tables = {name: value for name, value in given.items() if name not in names}
        made = cls(structure, start=tables, **{name: given[name] for name in given if name in names})  # type: ignore[call-arg]
        made._take_tables(tables, symbols)
        return made


@dataclass(eq=False, repr=False)
class FactorialHMM(Structured):
    """A hidden Markov model of several chains that run side by side, each with its own states; fitted by exact EM.

    chains              the number of states of each chain; the joint state is their tuple, the last chain fastest
    observations        "additive_gaussian": each chain adds a vector to the mean, one covariance for all (Ghahramani
                        and Jordan 1997); or any other of `HMM`, with parameters for every joint state
    covariance_type     additive_gaussian: "diag" or "full"; others as of `HMM`
    n_init              the best of so many starts: parts begin at random, and EM ends at local optima

    The others are those of `HMM`; `smoothing` is added to the counts of every chain's starts and transitions. Tables
    are `initial_0`, `transition_0`, `initial_1`, ... and, of additive Gaussians, `part`, with a row for each state of
    each chain in turn, and `covariance`. Cost of a step: z (z_1 + z_2 + ...), z their product, instead of z^2.
    """

    chains: Sequence[int] = (2, 2)
    _: KW_ONLY
    observations: str | Sequence[str] = "additive_gaussian"

    def structure(self) -> dict[str, Any]:
        sizes = _whole_numbers(self.chains, 1)
        if not sizes:
            raise DomainError(
                f"chains is {self.chains!r:.60}, but the number of states of each chain was expected: (2, 3)."
            )
        return {"chains": sizes, "n_states": math.prod(sizes)}

    def chain_states(self, states: ArrayLike) -> NDArray[np.int64]:  # "..." -> "... c"
        """The state of each chain, from joint ones as `predict` gives them."""
        return np.stack(np.unravel_index(np.asarray(states), self.structure()["chains"]), -1).astype(np.int64)

    @property
    def parts_(self) -> list[NDArray[Any]]:
        """What each state of each chain adds to the mean, "z_c f" for every chain."""
        part = self._read_table("part")
        return np.split(part, np.cumsum(self.structure()["chains"])[:-1])


@dataclass(eq=False, repr=False)
class HierarchicalHMM(Structured):
    """A hidden Markov model of states that call chains of their own, and go on when those end; fitted by exact EM.

    tree                the states of the root's chain: a number n calls a chain of n states that say frames, a tuple
                        calls a chain of such states in turn, 0 says frames itself; (2, (3, 0), 0)
    observations        as of `HMM`, one for every leaf, a state that says frames

    The others are those of `HMM`. Leaves are numbered in the order of the tree. Tables are, of the root, `entry_0` "c"
    and `move_0` "c c", of the chains in the order of the tree `entry_1` "c", `move_1` "c c+1", whose last column is the
    end, and so on. An end of the root is not modelled: sequences may be cut anywhere.
    Source: Fine, Singer, Tishby 1998; the model is flattened exactly into one HMM of the leaves.
    """

    tree: Sequence[Any] = (2, 2)
    _: KW_ONLY
    observations: str | Sequence[str] = "gaussian"
    tied_variance: bool = False

    def structure(self) -> dict[str, Any]:
        if not isinstance(self.tree, list | tuple) or not self.tree:
            raise DomainError(f"tree is {self.tree!r:.60}, but the states of the root were expected: (2, (3, 0), 0).")
        parents: list[int] = []
        _grow(self.tree, -1, parents)
        return {"parents": tuple(parents), "n_states": len(Tree(parents).leaves)}

    @property
    def levels_(self) -> NDArray[np.int64]:
        """Of each leaf the states of the chains above it, "z levels", the root's first; -1 below the leaf."""
        paths = Tree(self.structure()["parents"]).paths
        found = np.full((len(paths), max(map(len, paths))), -1)
        for row, path in zip(found, paths, strict=True):
            row[: len(path)] = path
        return found


def _grow(tree: Sequence[Any], parent: int, parents: list[int]) -> None:
    """Append the parent of every node of a chain, and of all below them."""
    for child in tree:
        number = len(parents)
        parents.append(parent)
        if isinstance(child, list | tuple) and child:
            _grow(child, number, parents)
            continue
        size = _whole_numbers([child], 0)
        if not size:
            raise DomainError(
                f"tree has {child!r:.60}, but a number of states, 0 for one that says frames, or a tuple was expected."
            )
        parents += [number] * size[0]


def _whole_numbers(given: Any, least: int) -> tuple[int, ...]:
    """The numbers as a tuple; an empty one unless all are whole and large enough."""
    if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray):
        return ()
    whole = [isinstance(x, int | np.integer) and not isinstance(x, bool) and x >= least for x in given]
    return tuple(int(x) for x in given) if all(whole) else ()
