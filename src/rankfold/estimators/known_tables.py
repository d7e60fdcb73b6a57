"""Known tables of an estimator: validated, set into a model, or made into one of their own."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankfold.errors import DomainError, ShapeError
from rankfold.estimators.check_parameters import groups_of
from rankfold.models.catalog import build_model
from rankfold.models.config import FrameConfig, frame_family
from rankfold.models.frame_model import FrameModel
from rankfold.params.observations import OBSERVATIONS
from rankfold.params.prior import Prior, Table

# What users call the tables of observations, and what modules do; a name may stand for either of two.
NAMES = {
    "means": ("mean",),
    "covariances": ("covariance", "variance"),
    "variances": ("variance",),
    "rates": ("rate",),
    "shapes": ("shape",),
    "emission": ("probability",),
    "probabilities": ("probability",),
    "weights": ("weight",),
    "scales": ("scale",),
    "degrees": ("dof",),
    "coefficients": ("coefficient",),
    "intercepts": ("intercept",),
    "loadings": ("loading",),
    "transition_weights": ("transition_weight",),
    "initial_weights": ("initial_weight",),
    "noises": ("noise",),
    "concentrations": ("concentration",),
    "deviations": ("deviation",),
    "zeros": ("zero",),
    "parts": ("part",),
    "durations": ("duration",),
}
OF_STATES = ("initial", "transition", "left", "right", "entry", "move", "end", "duration", "durations")  # no features
TABLES = "tables"  # the arguments of from_tables, each called by its own name


class MissingTableError(DomainError):
    """Tables that a model needs, some of which were not given."""


def modules_of(model: FrameModel) -> list[Any]:
    """The parts of a model that have tables."""
    return [x for x in (model.dynamics, model.observation, model.duration, model.ending) if x is not None]


def known_tables(model: FrameModel) -> dict[str, Table]:
    """All tables of a model by name."""
    return {name: table for module in modules_of(model) for name, table in module.tables().items()}


def own_names(tables: Mapping[str, Any], known: Mapping[str, Any], what: str) -> dict[str, str]:
    """By the names that the model knows, those by which the tables came; raises on others."""
    found: dict[str, str] = {}
    for name in tables:
        choices = [x for x in own_choices(name) if x in known]
        if not choices:
            raise DomainError(
                f"{what} has {name!r}, but a model of this kind has {', '.join(map(public_name, known))}."
            )
        if choices[0] in found:
            raise DomainError(f"{what} has the table {choices[0]!r} twice: {found[choices[0]]} and {name}.")
        found[choices[0]] = name
    return found


def own_choices(name: str) -> tuple[str, ...]:
    """What a model may call the table that users call so; "emission_3" is that of column 3, where several have one."""
    table, _, column = name.rpartition("_")
    if not column.isdigit():
        return (name, *NAMES.get(name, ()))
    return (name, *(f"{own}_{column}" for own in NAMES.get(table, ())))


def public_name(own: str) -> str:
    """What users call a table that the model knows by this name."""
    return next((name for name, names in NAMES.items() if own in names), own)


def fill_start(model: FrameModel, start: Mapping[str, Any], prior: Prior, what: str = "start") -> None:
    """Set some tables of the model; raises on other names or shapes, and unless rows are distributions.

    Raises, too, on tables that the fit's own constraints rule out: EM would step away from it, to a lower likelihood.
    """
    each = [(module, module.tables()) for module in modules_of(model)]
    known = {name: table for _, tables in each for name, table in tables.items()}
    given = own_names(start, known, what)
    called = {name: word if what == TABLES else f"{what}[{word!r}]" for name, word in given.items()}
    found = {
        name: _like(
            start[given[name]], called[name], table, probability=name == "probability", variance=name == "variance"
        )
        for name, table in known.items()
        if name in given
    }
    spherical = model.config.covariance == "spherical"
    matrices = {name for name, table in known.items() if table.positive == "definite"}
    _expect_allowed(found, prior, called, matrices, negative_binomial="log_shape" in known, spherical=spherical)
    for module, tables in each:
        own = {name: found[name] for name in tables if name in found}
        if own:
            module.fill(**own)
    tables = {**{name: table.value for name, table in known.items()}, **found}
    if "left" in tables and not model.config.may_repeat:
        _expect_ways_out(tables["left"], tables["right"], what)


def _expect_allowed(
    found: Mapping[str, Tensor],
    prior: Prior,
    called: Mapping[str, str],
    matrices: Set[str],
    *,
    negative_binomial: bool,
    spherical: bool,
) -> None:
    least = torch.as_tensor(prior.min_variance)
    for name in ("variance", "scale", "noise"):
        if name in found and name not in matrices and least.ndim:
            x = found[name]
            floor = (least.to(x).mean() if spherical else least.to(x)[: x.shape[-1]]).expand_as(x)
            if bool((below := x < floor).any()):
                at = below.nonzero()[0].tolist()
                whose = "all features" if spherical else f"feature {at[-1]}"
                raise DomainError(
                    f"{called[name]}{_place(at)} is {float(x[tuple(at)]):g}, but min_variance keeps the variances "
                    f"of {whose} at {float(floor[tuple(at)]):g} or more.\n"
                    "  Raise it to that, or lower min_variance, a share of the feature's variance in all frames."
                )
    for name in ("covariance", "scale"):
        if name in found and name in matrices and least.ndim:
            _expect_above(found[name], least, called[name])
    if "transition" in found and prior.forbidden is not None:
        ruled_out = prior.forbidden & (found["transition"] > 0)
        if bool(ruled_out.any()):
            at = ruled_out.nonzero()[0].tolist()
            why = "a segment follows one of its own state" if at[0] == at[1] else "that transition is forbidden"
            raise DomainError(
                f"{called['transition']}{_place(at)} is {float(found['transition'][tuple(at)]):g}, but {why}.\n"
                "  Set it to 0, and let the row sum to 1 again; or allow it (forbidden, self_transitions)."
            )
    if negative_binomial and bool((found.get("log_rate", torch.full((1,), -1.0)) >= 0).any()):
        raise DomainError(
            f"{called['log_rate']} has entries that are not below 0, but of negative binomial durations it is the log "
            "of a share below 1."
        )


def _expect_above(covariance: Tensor, floor: Tensor, name: str) -> None:  # "... f f", "f" and more
    """Raise unless covariances keep to the floor: C - diag(floor) is positive semi-definite."""
    unit = floor.to(covariance)[: covariance.shape[-1]].sqrt()
    if not bool((unit > 0).all()):
        return
    least = torch.linalg.eigvalsh(covariance / (unit[:, None] * unit)).amin(-1).reshape(-1)
    if bool((least < 1 - 2.0**-30).any()):  # eigenvalues are rounded
        raise DomainError(
            f"matrix {int(least.argmin())} of {name} is below the lower bound of covariances, "
            f"{float(least.min()):.3g} times it in one direction.\n"
            "  Raise it, or lower min_variance, a share of the features' variances in all frames."
        )


def _expect_ways_out(left: Tensor, right: Tensor, what: str) -> None:
    """Raise if low-rank factors lead a state nowhere but to itself, and it may not follow itself."""
    # A way out of z is a rank it goes to that leads elsewhere, too.
    elsewhere = (right > 0).sum(0) > (right > 0).long()
    stuck = ~((left > 0) & elsewhere).any(1)
    if bool(stuck.any()):
        raise DomainError(
            f"left and right of {what} lead state {int(stuck.nonzero()[0])} to itself alone, but no segment follows "
            "one of its own state."
        )


def _place(at: list[int]) -> str:
    return "[" + ", ".join(map(str, at)) + "]"


def _like(given: Any, name: str, table: Table, *, probability: bool, variance: bool) -> Tensor:
    own = table.value
    try:
        x = torch.as_tensor(np.array(given, dtype=np.float64)).to(own)
    except (TypeError, ValueError) as error:
        raise DomainError(f"{name} is no array of numbers ({error}).") from None
    if variance and x.shape == (*own.shape, own.shape[-1]):
        diagonal = x.diagonal(dim1=-2, dim2=-1)
        x = diagonal if bool((x == torch.diag_embed(diagonal)).all()) else x  # diagonal covariances, written out
    if x.shape != own.shape:
        raise ShapeError(f"{name} has shape {tuple(x.shape)}, but {tuple(own.shape)} was expected.")
    if not bool(x.isfinite().all()):
        raise DomainError(f"{name} has entries that are not finite.")
    if (probability or table.positive == "share") and bool(((x < 0) | (x > 1)).any()):
        raise DomainError(f"{name} has entries outside 0..1.")
    if table.positive in ("entries", "or zero") and bool(((x < 0) | (x == 0) & (table.positive == "entries")).any()):
        rule = "above 0" if table.positive == "entries" else "at least 0"
        raise DomainError(f"{name} has entries that are not {rule}.")
    if table.positive == "definite":
        _expect_definite(x, name)
    if table.axis is not None:
        sums = x.sum(table.axis)
        if bool((x < 0).any()):
            raise DomainError(f"{name} is no distribution: it has entries below 0.")
        if not torch.allclose(sums, torch.ones_like(sums)):
            raise DomainError(f"{name} is no distribution: its sums along axis {table.axis} are not 1.")
    return x


def _expect_definite(x: Tensor, name: str) -> None:  # "... f f"
    matrices = x.reshape(-1, *x.shape[-2:])
    for i, one in enumerate(matrices):
        where = f"matrix {i} of {name}" if len(matrices) > 1 else name
        if not torch.allclose(one, one.mT, rtol=1e-8, atol=1e-12 * float(one.abs().max())):
            raise DomainError(f"{where} is not symmetric, but a covariance is.")
        if int(torch.linalg.cholesky_ex(one)[1]):
            least = float(torch.linalg.eigvalsh(one)[0])
            raise DomainError(
                f"{where} is singular: it has the eigenvalue {least:.3g}, but covariances are positive definite.\n"
                "  Leave features out that are sums of others, or add a little to the diagonal."
            )


def model_of(params: Mapping[str, Any], tables: Mapping[str, Any]) -> FrameModel:
    """The model with these tables, all that it needs; sizes are those of the tables."""
    for name in ("initial", "transition"):
        if tables.get(name) is None:
            raise MissingTableError(f"{name} is not given, but a model needs it.")
    transition = tables["transition"]
    low_rank = is_low_rank(transition)
    given: dict[str, Any] = {"initial": tables["initial"]}
    given |= {"left": transition[0], "right": transition[1]} if low_rank else {"transition": transition}
    given |= {name: x for name, x in tables.items() if name not in given and name != "transition"}
    has_segments = "max_duration" in params
    durations = given.pop("durations", None)
    if has_segments:
        if durations is None:
            raise MissingTableError('durations are not given, but an HSMM needs them: a table "z d" of probabilities.')
        given["durations"] = durations
    elif durations is not None:
        raise DomainError("durations are given, but an HMM has none.\n  Use HSMM.from_tables.")
    shapes = {name: shape_of(x, name) for name, x in given.items()}
    num_states = next(iter(shapes["initial"]), 1)
    num_features, sizes = observation_sizes(params, shapes)
    sizes |= {**driven_sizes(shapes), "ends": "end" in given, "tied_states": groups_of(params)}
    config = FrameConfig(
        family=frame_family(segments=has_segments, low_rank=low_rank),
        num_states=num_states,
        num_features=num_features,
        rank=shapes["left"][-1] if low_rank else 1,
        max_duration=(shapes["durations"] or (1,))[-1] if has_segments else 1,
        durations="categorical",
        min_duration=int(params.get("min_duration", 1)),
        self_transitions=bool(params.get("self_transitions", True)),
        censored=bool(params.get("censored", False)),
        min_variance=0.0,
        **sizes,
    )
    model = build_model(config).to(torch.device(params["device"]), getattr(torch, params["dtype"]))
    known = known_tables(model)
    missing = set(known) - set(own_names(given, known, TABLES))
    if missing:
        what, needed = public_name(min(missing)), ", ".join(map(public_name, known))
        raise MissingTableError(
            f"{what!r} is not given, but a model of {config.observations} observations needs {needed}."
        )
    forbidden = None
    if has_segments and not config.may_repeat and not low_rank:
        forbidden = torch.eye(num_states, dtype=torch.bool, device=model.device)
    fill_start(model, given, Prior(forbidden=forbidden), TABLES)
    return model


def is_low_rank(transition: Any) -> bool:
    """Whether it is a pair of factors; a tuple of rows is a matrix."""
    return isinstance(transition, tuple) and len(transition) == 2 and np.ndim(transition[0]) == 2


def shape_of(given: Any, name: str) -> tuple[int, ...]:
    """The shape of a table; raises unless it is an array of numbers."""
    try:
        return np.array(given, dtype=np.float64).shape
    except (TypeError, ValueError) as error:
        raise DomainError(
            f"{name} is {given!r:.40}, but a table is an array of numbers ({error!s:.80}).\n"
            "  Other arguments of from_tables are parameters of the estimator: see its get_params()."
        ) from None


def driven_sizes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """The fields of a configuration that say what inputs drive, from the shapes of tables of weights."""
    by_name = {NAMES.get(name, (name,))[0]: shape for name, shape in shapes.items()}
    parts = {"transition": by_name.get("transition_weight"), "start": by_name.get("initial_weight")}
    driven = tuple(part for part, shape in parts.items() if shape)
    return {"driven": driven, "num_drivers": next(x for x in parts.values() if x)[-1]} if driven else {}


def observation_sizes(params: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, dict[str, Any]]:
    """The number of features, and the fields of a configuration that say what observations there are.

    `shapes` are those of known tables: sizes follow from them; without any, from the parameters.
    """
    by_name = {own: shapes[name] for name in shapes for own in own_choices(name)}
    observations = params["observations"]
    columns: tuple[str, ...] = ()
    if not isinstance(observations, str):
        observations, columns = "product", tuple(observations)
        symbols = [by_name.get(f"probability_{i}", by_name.get("probability", ())) for i in range(len(columns))]
        pairs = zip(columns, symbols, strict=True)
        columns = tuple(f"{x}:{shape[-1]}" if x == "categorical" and shape else x for x, shape in pairs)
    sizes: dict[str, Any] = {
        "observations": observations,
        "columns": columns,
        "covariance": params["covariance_type"],
        "covariance_rank": params["covariance_rank"],
        "num_components": params["n_mix"],
        "order": params["order"],
        "num_covariates": params["n_inputs"],
        "tied_variance": bool(params["tied_variance"]),
    }
    if columns:
        return len(columns), sizes
    widest = ("mean", "rate", "probability", "intercept", "part", "alpha", "deviation")  # a number for each feature
    named = [by_name[x] for x in widest if x in by_name]
    ours = {*OF_STATES, *NAMES, *(x for names in NAMES.values() for x in names)}
    others = [shape for name, shape in shapes.items() if not {name, name.partition("_")[0]} & ours]  # of one's own
    width = next((shape[-1] if shape else 1 for shape in (*named, *others)), 0)
    if "coefficient" in by_name and len(by_name["coefficient"]) == 3:
        inputs = by_name["coefficient"][2]
        if OBSERVATIONS[observations].needs == "all":  # frames are lags
            sizes["order"] = max(1, inputs // max(1, width))
        elif observations == "logistic":
            sizes |= {"num_covariates": inputs, "num_classes": width}
            width = 1 + inputs
        else:
            sizes["num_covariates"], width = inputs, width + inputs
    if observations == "gaussian_mixture" and len(by_name.get("weight", ())) == 2:
        sizes["num_components"] = by_name["weight"][1]
    if "loading" in by_name and len(by_name["loading"]) == 3:
        sizes["covariance_rank"] = by_name["loading"][2]
    if shapes and not width:
        kind = OBSERVATIONS[observations]
        small = {"num_states": 1, "num_features": 2, "covariance_rank": 1}
        small |= {"num_covariates": int(kind.needs == "inputs")}
        needed = kind.draw(FrameConfig("frame_hmm", **{**sizes, **small}), torch.Generator()).tables()
        raise MissingTableError(
            "no table of the observations is given, but a model of "
            f"{observations} observations needs {', '.join(map(public_name, needed))}."
        )
    return width, sizes
