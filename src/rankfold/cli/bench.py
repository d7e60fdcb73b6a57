"""`rankfold bench`: a gradient step of your model on your machine, checked against wider arithmetic, then timed.

The published tables and the comparisons with plain torch and other libraries are in `benchmarks/` of the repository.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import math
import platform
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from rankfold.cli.load import BATCH, NUM_WORDS, add_options, find_device, find_model, own_recipe
from rankfold.cli.output import say, table, three_digits, to_json
from rankfold.cli.train import add_settings
from rankfold.data.batch import Batch
from rankfold.data.clusters import uniform_clusters
from rankfold.errors import DomainError, UnsupportedError
from rankfold.models.catalog import build_model
from rankfold.numerics.capture import capture_graph
from rankfold.numerics.precision import Precision, matmul_precision, parameter_precision
from rankfold.planning.measure import (
    Turn,
    held_bytes,
    host_time,
    in_turns,
    out_of_memory,
    peak_mib,
    release,
    replay_time,
    too_large,
)
from rankfold.version import __version__

SEED = 1  # of the dropout of a step
DENSITY = 0.05  # of ones among random Bernoullis: about four keys of a piano
EXACT = 1e-10  # float64 against float64: the same sums in another order
# log Z against float64, relative.
LOG_Z: dict[Precision, float] = {"float32": 1e-6, "tf32": 3e-5, "bf16": 1e-3}
# The whole gradient, by its length: of a captured step against an eager one; against wider arithmetic.
GRADIENT: dict[Precision, float] = {"float32": 1e-3, "tf32": 2e-2, "bf16": 1e-1}
WIDE_GRADIENT: dict[Precision, float] = {"float32": 1e-3, "tf32": 1e-1, "bf16": 1e-1}
DESCRIPTION = (
    "Check a gradient step (parameters to potentials to log Z and back) of a saved model or of a recipe's: "
    "log Z and gradients against float64, float64 against logarithms. Then time it on random sequences: "
    "milliseconds, tokens per second, peak memory. A step that fails a check gets no time, and the exit status "
    "is 1."
)
EXAMPLE = """\
example:
  rankfold bench small-lhmm
  rankfold bench small-lhmm --set model.num_states=4096 --batch 16 --length 64 --device cuda --precision bf16
  rankfold bench runs/small --json"""


class Gradients(NamedTuple):
    """The result of a step."""

    log_z: Tensor  # "b"
    parameters: tuple[Tensor, ...]  # the gradient of the sum of log Z in each


class Check(NamedTuple):
    """One comparison; `error` is None where it was left out, and `why` says why."""

    what: str
    error: float | None
    allowed: float
    why: str = ""

    @property
    def passed(self) -> bool:
        """Whether the error is within its limit; NaN is not, a check left out is."""
        return self.error is None or self.error <= self.allowed

    def text(self) -> str:
        """The check in a line."""
        if self.error is None:
            return f"{self.what}: left out, {self.why}"
        return f"{self.what}: off by {self.error:.2g}, allowed {self.allowed:.2g}"

    def record(self) -> dict[str, Any]:
        """The check as plain data."""
        return {**self._asdict(), "passed": self.passed, "text": self.text()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="RUN_OR_RECIPE", help="the folder of a run or model, or a recipe")
    add_settings(parser)
    parser.add_argument("--batch", type=int, default=BATCH, help=f"sequences (default: {BATCH})")
    parser.add_argument("--length", type=int, default=32, help="tokens or frames of each (default: 32)")
    parser.add_argument(
        "--precision", choices=get_args(Precision), help="of products (default: the recipe's, else float32)"
    )
    parser.add_argument("--words", type=int, help=f"size of a recipe's vocabulary (default: {NUM_WORDS})")
    parser.add_argument("--repeats", type=int, default=15, help="times of each step (default: 15)")
    add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the report; 1 if a check failed."""
    device = torch.device(find_device(arguments.device))
    config = own_recipe(arguments.model, arguments.settings)
    precision = arguments.precision or (config.train.precision if config else "float32")
    if precision == "tf32" and device.type == "cpu":
        if arguments.precision:
            raise UnsupportedError("--precision is tf32, which a CPU computes as float32.\n  Take float32, or bf16.")
        precision = "float32"
    sizes = {"batch": arguments.batch, "length": arguments.length, "repeats": arguments.repeats}
    for name, size in sizes.items():
        if size < 1:
            raise DomainError(f"--{name} is {size}, but must be at least 1.")
    model = find_model(arguments.model, arguments.settings, arguments.words)
    plan = model.plan(arguments.batch, arguments.length, device.type, precision).best
    why = too_large(plan.peak_bytes, device)
    if why:
        raise UnsupportedError(f"a step of {arguments.model} does not fit: it {why}.\n  Take a smaller --batch.")
    if next(model.parameters()).is_meta:
        model = fresh_model(model.config, getattr(model, "num_words", 0))
    report = bench(model.to(device), precision=precision, progress=say, **sizes)
    print(to_json(report, indent=2) if arguments.json else text(report))
    return 0 if report["passed"] else 1


def bench(
    model: Any,
    *,
    batch: int = 8,
    length: int = 32,
    precision: Precision = "float32",
    repeats: int = 15,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """The report as plain data; it has times only where every check passed."""
    device = next(model.parameters()).device
    drawn = draw_batch(model.config, getattr(model, "num_words", 0), batch, length).to(device)
    progress("checks ...")
    checks = check_step(model, drawn, precision)
    times: dict[str, Any] = {}
    if all(check.passed for check in checks):
        progress("times ...")
        times = time_step(model, drawn, precision, repeats)
        checks += times.pop("checks")
    passed = all(check.passed for check in checks)
    median = times["step_ms"]["median"] if passed else None
    return {
        "rankfold": __version__,
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
        "device": device_name(device),
        "family": model.config.family,
        "parameters": sum(x.numel() for x in model.parameters()),
        "batch": batch,
        "length": length,
        "precision": precision,
        **(times if passed else dict.fromkeys(("step_ms", "eager_ms", "forward_ms", "peak_mib"))),
        "tokens_per_second": None if median is None else 1e3 * batch * length / median,
        "checks": [check.record() for check in checks],
        "passed": passed,
    }


def fresh_model(config: Any, num_words: int, *, seed: int = 0, device: str = "cpu") -> Any:
    """A model with new parameters; a block model has clusters of equal size, one of frames its own features.

    On the device "meta" it has no memory for them.
    """
    clusters = uniform_clusters(num_words, config.num_clusters, seed=0) if config.has_clusters else None
    with torch.device(device):
        return build_model(config, getattr(config, "num_features", num_words), clusters=clusters, seed=seed)


def draw_batch(config: Any, num_words: int, batch: int, length: int) -> Batch:
    """Sequences of random words or frames, all as long as the batch is wide."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.full((batch,), length)
    if config.data != "recordings":
        return Batch(torch.randint(num_words, (batch, length), generator=generator), lengths)
    if config.observation.symbols:
        return Batch(torch.randint(config.num_features, (batch, length), generator=generator), lengths)
    shape = (batch, length, config.num_features)
    if config.observation.measured:
        return Batch(torch.randn(shape, generator=generator, dtype=torch.float32), lengths)
    return Batch((torch.rand(shape, generator=generator, dtype=torch.float32) < DENSITY).float(), lengths)


def potentials_of(model: Any, batch: Batch, generator: torch.Generator | None = None) -> Any:
    """The potentials of a batch; its frames, if it has any, are converted to the model's dtype."""
    if batch.values.is_floating_point():
        batch = batch._replace(values=batch.values.to(model.dtype))
    return model.potentials(batch, generator=generator)


def gradients(
    model: Any, batch: Batch, precision: Precision = "float32", generator: torch.Generator | None = None
) -> Gradients:
    """A step as training takes it, without an optimizer; with a generator, that of a step with dropout."""
    with matmul_precision(parameter_precision(precision), batch.lengths.device):
        value = model.log_z(potentials_of(model, batch, generator), precision=precision)
        return Gradients(value.detach(), differentiate(value, list(model.parameters())))


def differentiate(value: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The gradients; 0 where the value does not depend on an input: a sequence of one word has no transition."""
    return torch.autograd.grad(value.sum(), inputs, allow_unused=True, materialize_grads=True)


def check_step(model: Any, batch: Batch, precision: Precision) -> list[Check]:
    """log Z and gradients against float64, and log Z in float64 against logarithms, of the first sequence."""
    found = gradients(model, batch, precision)
    impossible = int((found.log_z == -math.inf).sum())
    if impossible:
        raise DomainError(
            f"{impossible} of {len(found.log_z)} random sequences have probability 0: their gradient is not defined.\n"
            "  Take another --length; most grammars need at least 2 words."
        )
    device = batch.lengths.device
    release(device)
    whats = (
        (f"log Z in {precision} against float64", LOG_Z[precision]),
        (f"gradients in {precision} against float64", WIDE_GRADIENT[precision]),
        ("log Z in float64 against logarithms", EXACT),
    )
    why = too_large(2 * model.plan(*batch.shape, device.type, precision).best.peak_bytes, device)
    if why:
        return [Check(what, None, allowed, f"float64 {why}") for what, allowed in whats]
    try:
        wide = copy.deepcopy(model).double()
        truth = gradients(wide, batch)
        with torch.no_grad():
            in_logs = wide.log_z(potentials_of(wide, batch.rows(slice(1))), "log")
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        return [Check(what, None, allowed, "float64 does not fit into memory") for what, allowed in whats]
    errors = (
        relative_error(found.log_z, truth.log_z),
        gradient_distance(found, truth),
        relative_error(truth.log_z[:1], in_logs),
    )
    return [Check(what, error, allowed) for (what, allowed), error in zip(whats, errors, strict=True)]


def time_step(model: Any, batch: Batch, precision: Precision, repeats: int) -> dict[str, Any]:
    """Times by name, in turns, and the peak of memory; on CUDA the step is a captured graph, which is checked, too."""
    device = batch.lengths.device
    generator = torch.Generator(device=device).manual_seed(SEED)

    def step() -> Gradients:
        return gradients(model, batch, precision, generator)

    def forward() -> Tensor:
        with torch.no_grad(), matmul_precision(parameter_precision(precision), device):
            out: Tensor = model.log_z(potentials_of(model, batch, generator), precision=precision)
            return out

    step()
    release(device)
    own = sum(x.numel() * x.element_size() for x in model.parameters())
    peak = peak_mib(step, device, held_bytes(device) - own)
    turns = {
        "step_ms": Turn(lambda: host_time(step, device), repeats),
        "forward_ms": Turn(lambda: host_time(forward, device), repeats),
    }
    checks: list[Check] = []
    if device.type == "cuda":
        turn, checks = capture_turn(step, generator, precision, repeats)
        turns = {"step_ms": turn, "eager_ms": turns["step_ms"], "forward_ms": turns["forward_ms"]}
    times: dict[str, Any] = {name: spread._asdict() for name, spread in in_turns(turns).items()}
    return {"eager_ms": times["step_ms"], **times, "peak_mib": peak, "checks": checks}


def capture_turn(
    work: Callable[[], Gradients], generator: torch.Generator | None, precision: Precision, repeats: int
) -> tuple[Turn, list[Check]]:
    """The replay of a captured step, and the checks of its result."""

    def seed() -> None:
        if generator is not None:
            generator.manual_seed(SEED)

    seed()
    eager = work()
    graph, result = capture_graph(work, generator=generator)
    seed()
    graph.replay()
    torch.cuda.synchronize()
    checks = replay_checks(result, eager, precision)
    return Turn(partial(_replay, graph, work), repeats), checks


def _replay(graph: torch.cuda.CUDAGraph, work: Callable[[], Gradients]) -> float:
    """Milliseconds of a replay. The work is held as long as its graph: a graph reads its inputs where they lie."""
    return replay_time(graph)


def replay_checks(replayed: Gradients, eager: Gradients, precision: Precision) -> list[Check]:
    """log Z and gradients of a captured graph against an eager step of the same seed.

    A sequence that the graph cannot vouch for is NaN there, and fails: training would repeat its step eagerly.
    """
    return [
        Check(
            f"log Z of the captured step in {precision}", relative_error(replayed.log_z, eager.log_z), LOG_Z[precision]
        ),
        Check(
            f"gradients of the captured step in {precision}", gradient_distance(replayed, eager), GRADIENT[precision]
        ),
    ]


def relative_error(found: Tensor, truth: Tensor) -> float:  # "b", "b"
    """The largest difference of a sequence, relative to its value; below 1, where a difference of logarithms is a
    relative one of probabilities already, as it is."""
    truth = truth.double()
    return float(((found.double() - truth) / torch.maximum(truth.abs(), torch.ones_like(truth))).abs().max())


def gradient_distance(found: Gradients, truth: Gradients) -> float:
    """The length of the difference of two gradients, all parameters together, relative to the second's."""
    apart, lengths = gradient_lengths(found, truth)
    return math.hypot(*apart) / math.hypot(*lengths)


def gradient_lengths(found: Gradients, truth: Gradients) -> tuple[list[float], list[float]]:
    """The norms of the differences, parameter by parameter, and of the second's gradients."""
    pairs = list(zip(found.parameters, truth.parameters, strict=True))
    apart = [float((one.double() - other.double()).norm()) for one, other in pairs]
    return apart, [float(other.double().norm()) for _, other in pairs]


def device_name(device: torch.device) -> str:
    """The device as its maker calls it; of a CPU also how many threads are used."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"{cpu_name()}, {torch.get_num_threads()} threads"


def cpu_name() -> str:
    """The processor as its maker calls it, or else its kind."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def text(report: dict[str, Any]) -> str:
    """The report as tables."""
    checks = [
        [
            check["what"],
            "left out" if check["error"] is None else f"{check['error']:.1e}",
            f"{check['allowed']:.0e}",
            "yes" if check["passed"] else "NO",
        ]
        for check in report["checks"]
    ]
    parts = [
        f"{report['family']}, {report['parameters']:,} parameters; {report['device']}, torch {report['torch']}, "
        f"rankfold {report['rankfold']}, {report['date']}",
        f"A gradient step of {report['batch']} random sequences of {report['length']}, {report['precision']}.",
        table(("check", "error", "allowed", "passed"), checks),
    ]
    left_out = sorted({check["why"] for check in report["checks"] if check["why"]})
    if left_out:
        parts.append(f"Left out: {'; '.join(left_out)}.")
    if not report["passed"]:
        return "\n\n".join([*parts, "No time is reported for a result that is wrong."])
    names = {"step_ms": "gradient step", "eager_ms": "without a graph", "forward_ms": "log Z alone"}
    if report["eager_ms"] == report["step_ms"]:
        del names["eager_ms"]
    tokens = report["batch"] * report["length"]
    rows = [
        [
            name,
            three_digits(spread["median"]),
            f"{three_digits(spread['low'])} to {three_digits(spread['high'])}",
            f"{1e3 * tokens / spread['median']:,.0f}",
            "-",
        ]
        for name, spread in ((name, report[key]) for key, name in names.items())
    ]
    if report["peak_mib"] is not None:
        rows[0][-1] = f"{report['peak_mib']:,.0f}"
    return "\n\n".join([*parts, table(("", "ms", "quartiles", "tokens per second", "peak MiB"), rows)])
