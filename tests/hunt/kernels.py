"""Kernels by themselves, at sizes where they run, in every precision; captured graphs; Triton's interpreter on a CPU.

Tolerances are the roundings of docs/numerics.md: operands of a product by half of their last bit, sums in float32.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import rankfold
from rankfold.kernels.dispatch import has_triton
from rankfold.kernels.linear_logsumexp import linear_logsumexp
from rankfold.kernels.linear_softmax import linear_softmax
from rankfold.kernels.log_products import log_matmul, max_matmul
from rankfold.numerics.precision import matmul_precision
from tests.hunt import values
from tests.hunt.arithmetic import EPS, Array, exp, magnitude, matmul, total, wide
from tests.hunt.compare import DeviatesError, array, close, expect
from tests.hunt.kind import Case, Deviation, Kind

if not torch.cuda.is_available():  # kernels are read as GPU code or as interpreted code when they are imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

# What is lost of a product's operands: tensor cores cut the bits off that TF32 has not, and round to bfloat16 by half
# of its last bit; "float32" loses none. In "mixed" products of gradients have bfloat16 operands.
OPERAND = {"float32": 0.0, "tf32": 2.0**-10, "mixed": 2.0**-10, "bf16": 2.0**-8}
BACKWARD = {**OPERAND, "mixed": 2.0**-8}
TINY = {"float32": 2.0**-126, "float64": 2.0**-1022}  # what lies below may be flushed to 0


class Kernels(Kind):
    """One kernel and one set of operands."""

    name = "kernels"
    unit = "kernel"
    weight = 1.0

    def draw(self, rng: np.random.Generator) -> Case:
        """A kernel by name, sizes, operands."""
        names = ["log_matmul", "max_matmul", "logsumexp", "softmax", "scan"]
        if self.device == "cpu" and has_triton():
            names.append("interpreted")
        name = str(rng.choice(names))
        dtype = str(rng.choice(["float32", "float64"]))
        case: Case = {"kernel": name, "dtype": dtype, "precision": "float32"}
        if name in ("log_matmul", "max_matmul"):
            how = values.style(rng)
            n, z, y = (int(rng.integers(1, 12)) for _ in range(3))
            return {**case, "x": values.logs(rng, how, dtype, n, z), "w": values.logs(rng, how, dtype, z, y)}
        if name in ("logsumexp", "softmax"):
            most = 8 if self.device == "cpu" else int(rng.choice([8, 70, 300]))
            z, v, d = (int(rng.integers(1, most + 1)) for _ in range(3))
            bias = rng.normal(size=v)
            bias[rng.random(v) < 0.2 * (rng.random() < 0.5)] = -np.inf
            if not np.isfinite(bias).any():
                bias[0] = 0.0
            scale = 10.0 ** rng.uniform(-2, 1)
            return {
                **case,
                "precision": self.precision(rng, dtype, ["float32", "tf32", "mixed"]),
                "query": values.listed(rng.normal(size=(z, d)) * scale, dtype),
                "key": values.listed(rng.normal(size=(v, d)), dtype),
                "bias": values.listed(bias, dtype) if rng.random() < 0.6 else None,
                "upstream": rng.normal(size=(z, v) if name == "softmax" else z).tolist(),
            }
        if name == "scan":
            most = 12 if self.device == "cpu" else int(rng.choice([16, 70, 300]))
            z, t, b = int(rng.integers(1, most + 1)), int(rng.integers(1, 12)), int(rng.integers(1, 9))
            rank = int(rng.integers(1, most + 1)) if rng.random() < 0.6 else None
            return {
                **case,
                "precision": self.precision(rng, dtype, ["float32", "tf32", "bf16"]),
                "sizes": [b, t, z, rank],
                "ragged": bool(rng.random() < 0.5),
                "graph": self.device == "cuda" and bool(rng.random() < 0.3),
                "seed": int(rng.integers(2**31)),
            }
        sizes = [int(rng.integers(1, n)) for n in (3, 5, 6)]
        return {**case, "dtype": "float32", "sizes": sizes, "seed": int(rng.integers(2**31))}

    def precision(self, rng: np.random.Generator, dtype: str, modes: list[str]) -> str:
        """A mode of products; only CUDA has others than float32, and only for float32."""
        return str(rng.choice(modes)) if self.device == "cuda" and dtype == "float32" else "float32"

    def large(self, case: Case) -> bool:
        return "sizes" in case and case["sizes"][1] > 4 and case["sizes"][2] > 3

    def check(self, case: Case) -> Deviation | None:
        try:
            {
                "log_matmul": _log_matmul,
                "max_matmul": _max_matmul,
                "logsumexp": _logsumexp,
                "softmax": _softmax,
                "scan": _scan,
                "interpreted": _interpreted,
            }[case["kernel"]](case, self.device)
        except DeviatesError as error:
            return error.deviation
        return None

    def smaller(self, case: Case) -> Iterator[Case]:
        if "sizes" in case:
            for i, size in enumerate(case["sizes"]):
                if size is not None and size > 1:
                    yield {**case, "sizes": [*case["sizes"][:i], size // 2, *case["sizes"][i + 1 :]]}
        if case.get("precision", "float32") != "float32":
            yield {**case, "precision": "float32"}


def _leaf(x: Any, case: Case, device: str) -> Any:
    return torch.tensor(x, dtype=getattr(torch, case["dtype"]), device=device).requires_grad_()


def _log_matmul(case: Case, device: str) -> None:
    x, w = (_leaf(case[k], case, device) for k in ("x", "w"))
    log_x, log_w = (wide(case[k], case["dtype"]) for k in ("x", "w"))
    want = matmul(log_x, log_w)
    found = log_matmul(x, w)
    size = magnitude(log_x) + magnitude(log_w)
    tol = EPS[case["dtype"]] * (8 + 2 * len(log_w) + 4 * size)
    close("log_matmul", found, want, tol)
    upstream = torch.ones_like(found)
    grads = torch.autograd.grad(found, (x, w), upstream)
    known = np.where(np.isfinite(want), want, 0.0)
    share = exp(log_x[:, :, None] + log_w[None] - known[:, None, :])  # 0 where nothing has weight
    close("gradient of log_matmul in x", grads[0], share.sum(2), 2 * tol * share.shape[2])
    close("gradient of log_matmul in w", grads[1], share.sum(0), 2 * tol * share.shape[0])


def _max_matmul(case: Case, device: str) -> None:
    log_x, log_w = (wide(case[k], case["dtype"]) for k in ("x", "w"))
    best, where = max_matmul(*(_leaf(case[k], case, device).detach() for k in ("x", "w")))
    terms = log_x[:, :, None] + log_w[None]
    want = terms.max(1)
    tol = EPS[case["dtype"]] * np.abs(np.where(np.isfinite(want), want, 0.0))
    close("max_matmul", best, want, tol)
    reached = np.take_along_axis(terms, where.cpu().numpy()[:, None, :], 1)[:, 0]
    close("argmax of max_matmul", reached, want, 2 * tol)


def _operands(case: Case, device: str) -> tuple[list[Any], Array, Array, float]:
    """Leaves, logits, what a logit is summed of, and how far a logit may be off."""
    q, k = (wide(case[x], case["dtype"]) for x in ("query", "key"))
    bias = np.zeros(len(k)) if case["bias"] is None else wide(case["bias"], case["dtype"])
    given = [_leaf(case[x], case, device) for x in ("query", "key", "bias") if case[x] is not None]
    operand, eps = OPERAND[case["precision"]], EPS[case["dtype"]]
    sums = np.abs(q) @ np.abs(k).T
    off = (2 * operand + eps * (4 + q.shape[1])) * sums.max() + 4 * eps * (1 + magnitude(bias))
    if operand:  # halves are divided by the largest entry: what lies 2^-24 below it is lost
        off += 2.0**-23 * q.shape[1] * magnitude(q) * magnitude(k)
    return given, q @ k.T + bias, sums, float(off)


def _logsumexp(case: Case, device: str) -> None:
    given, logits, _, off = _operands(case, device)
    with matmul_precision(case["precision"], torch.device(device)):
        found = linear_logsumexp(*given)
        upstream = torch.tensor(case["upstream"], dtype=found.dtype, device=device)
        grads = torch.autograd.grad(found, given, upstream)
    want, eps = total(logits), EPS[case["dtype"]]
    close("linear_logsumexp", found, want, off + eps * (4 + logits.shape[1] + np.abs(want)))
    share = exp(logits - want[:, None])
    g = np.array(case["upstream"])[:, None] * share
    _of_operands("linear_logsumexp", case, grads, g, 2 * (off + eps * (8 + logits.shape[1])), share)


def _of_operands(what: str, case: Case, grads: Any, g: Array, off: float, share: Array) -> None:
    """Gradients of query, key and bias from that of the logits, each term of which may be off by a share."""
    q, k = (wide(case[x], case["dtype"]) for x in ("query", "key"))
    operand, eps = BACKWARD[case["precision"]], EPS[case["dtype"]]
    one = (np.expm1(off) + 4 * operand + eps * (4 + max(len(q), len(k)))) * np.maximum(
        np.abs(g), share * np.abs(g).max()
    )
    floor = (2.0**-22 * np.abs(g).max() if operand else 0.0) + TINY[case["dtype"]] * (
        1 + np.abs(case["upstream"]).max()
    )
    wants = [g @ k, g.T @ q, g.sum(0)]
    tols = [
        one @ np.abs(k) + floor * np.abs(k).sum(0),
        one.T @ np.abs(q) + floor * np.abs(q).sum(0),
        one.sum(0) + floor * len(q),
    ]
    for name, got, want, tol in zip(("query", "key", "bias"), grads, wants, tols, strict=False):
        close(f"gradient of {what} in {name}", got, want, tol)


def _softmax(case: Case, device: str) -> None:
    given, logits, _, off = _operands(case, device)
    with matmul_precision(case["precision"], torch.device(device)):
        found = linear_softmax(*given)
        upstream = torch.tensor(case["upstream"], dtype=found.share.dtype, device=device)
        grads = torch.autograd.grad(found.share, given, upstream)
    whole, eps = total(logits), EPS[case["dtype"]]
    share = exp(logits - whole[:, None])
    relative = np.expm1(2 * off) + OPERAND[case["precision"]] + eps * (8 + logits.shape[1])
    close("linear_softmax", found.share, share, relative * share + 1e-38)
    close("log_total of linear_softmax", found.log_total, whole, off + eps * (4 + logits.shape[1] + np.abs(whole)))
    up = np.array(case["upstream"])
    mean = (up * share).sum(1, keepdims=True)
    g = share * (up - mean)
    # A difference of two numbers that are each off by a share.
    spread = share * (np.abs(up) + (np.abs(up) * share).sum(1, keepdims=True))
    q, k = (wide(case[x], case["dtype"]) for x in ("query", "key"))
    one = (3 * relative + 4 * BACKWARD[case["precision"]] + eps * (4 + max(len(q), len(k)))) * spread
    floor = 2.0**-22 * spread.max() if OPERAND[case["precision"]] else 0.0
    wants, sides = [g @ k, g.T @ q, g.sum(0)], [np.abs(k), np.abs(q), np.ones((len(q), 1))]
    tols = [one @ sides[0], one.T @ sides[1], one.sum(0)]
    for name, got, want, tol, side in zip(("query", "key", "bias"), grads, wants, tols, sides, strict=False):
        close(f"gradient of linear_softmax in {name}", got, want, tol + floor * np.abs(side).sum() + 1e-38)


def _scan(case: Case, device: str) -> None:
    """A chain of ordinary weights at sizes of its kernels, eager or captured, against float64 vectors in numpy."""
    b, t, z, rank = case["sizes"]
    rng = np.random.default_rng(case["seed"])
    dtype = case["dtype"]
    maps = (
        [rng.uniform(0.1, 1.0, (z, rank)), rng.uniform(0.1, 1.0, (z, rank))]
        if rank
        else [rng.uniform(0.1, 1.0, (z, z))]
    )
    initial, obs, final = rng.normal(size=z), rng.normal(size=(b, t, z)) * 2, rng.normal(size=z)
    maps, (initial, obs, final) = (
        [x.astype(dtype).astype(float) for x in maps],
        (x.astype(dtype).astype(float) for x in (initial, obs, final)),
    )
    lengths = rng.integers(1, t + 1, b) if case["ragged"] else np.full(b, t)
    a = maps[0] @ maps[1].T if rank else maps[0]
    inside = np.arange(t) < lengths[:, None]
    log_z, posterior, moves = _forward_backward(initial, a, obs, final, lengths)

    leaves = [_leaf(x, case, device) for x in (initial, np.where(inside[..., None], obs, np.nan), final, *maps)]
    make = rankfold.LowRank if rank else rankfold.Dense
    count = torch.tensor(lengths, device=device) if case["ragged"] else None

    def step() -> tuple[Any, ...]:
        p = rankfold.ChainPotentials(leaves[0], make(*leaves[3:]), leaves[1], leaves[2], count)
        out = rankfold.log_z(p, precision=case["precision"])
        return (out.detach(), *torch.autograd.grad(out.sum(), leaves))

    if case["graph"]:
        from rankfold.numerics.capture import capture_graph

        real = leaves[1].detach().clone()
        with torch.no_grad():
            leaves[1].copy_(torch.where(real.isnan(), real, 0.0))  # recorded with other observations than replayed
        graph, found = capture_graph(step)
        with torch.no_grad():
            leaves[1].copy_(real)
        graph.replay()
        torch.cuda.synchronize()
    else:
        found = step()
    steps = 2 if rank else 1
    relative = 3 * t * (steps * 2 * OPERAND[case["precision"]] + EPS[dtype] * (16 + 2 * z + 2 * (rank or 0)))
    close("log_z of a scan", found[0], log_z, relative)
    ends = posterior[np.arange(b), lengths - 1].sum(0)
    wants = [posterior[:, 0].sum(0), posterior, ends]
    wants += [moves @ maps[1], moves.T @ maps[0]] if rank else [moves]
    for name, got, want in zip(
        ("log_initial", "log_obs", "log_final", "left", "right"), found[1:], wants, strict=False
    ):
        close(
            f"gradient of a scan in {name}",
            got,
            want.astype(np.longdouble),
            2 * relative * (np.abs(want) + 1e-3 * np.abs(want).max()),
        )


def _forward_backward(initial: Array, a: Array, obs: Array, final: Array, lengths: Array) -> tuple[Array, Array, Array]:
    """log Z, posteriors and the gradient of the matrix: scaled vectors in float64, for weights without zeros."""
    b, t, z = obs.shape
    weight, last = np.exp(obs), np.exp(final)
    alpha, beta = np.zeros((b, t, z)), np.zeros((b, t, z))
    scale = np.zeros((b, t))
    for i in range(t):
        now = (np.exp(initial) if i == 0 else alpha[:, i - 1] @ a) * weight[:, i]
        scale[:, i] = now.sum(1)
        alpha[:, i] = now / scale[:, i, None]
    for i in reversed(range(t)):
        ended = (lengths - 1 <= i)[:, None]
        behind = (weight[:, i + 1] * beta[:, i + 1]) @ a.T if i < t - 1 else np.broadcast_to(last, (b, z))
        beta[:, i] = np.where(ended, last, behind)
        beta[:, i] /= beta[:, i].sum(1, keepdims=True)
    inside = np.arange(t) < lengths[:, None]
    at_end = alpha[np.arange(b), lengths - 1]
    log_z = np.log(at_end @ last) + np.where(inside, np.log(scale), 0.0).sum(1)
    joint = alpha * beta
    posterior = np.where(inside[..., None], joint / joint.sum(2, keepdims=True), 0.0)
    moves = np.zeros((z, z))
    for i in range(t - 1):
        here = inside[:, i + 1]
        ahead = weight[:, i + 1] * beta[:, i + 1]
        mass = ((alpha[:, i] @ a) * ahead).sum(1)
        moves += (alpha[here, i] / mass[here, None]).T @ ahead[here]
    return log_z.astype(np.longdouble), posterior.astype(np.longdouble), moves


def _interpreted(case: Case, device: str) -> None:
    """The scan of block chains in Triton's interpreter."""
    from rankfold.kernels.block_scan import triton as kernel

    b, t, k = case["sizes"]
    rng = np.random.default_rng(case["seed"])
    initial, moves, obs = (rng.normal(size=s).astype("float32") for s in ((b, k), (b, t - 1, k, k), (b, t, k)))
    tensors = [torch.tensor(x) for x in (initial, moves, obs)]
    messages, logs = kernel.filter_states(*tensors)
    lengths = torch.tensor(rng.integers(1, t + 1, b))
    ahead = kernel.future(*tensors[1:], lengths)
    tol = EPS["float32"] * t * 64
    x = initial.astype(np.longdouble)
    for i in range(t):
        if i:
            x = total(x[:, :, None] + moves[:, i - 1], 1)
        x = x + obs[:, i]
        close("log weight of a block scan", logs[i], total(x), tol)
        x = x - total(x)[:, None]
        close("message of a block scan", messages[i], x, tol)
    y = np.zeros((b, k), np.longdouble)
    for i in reversed(range(t)):
        if i < t - 1:
            y = total(moves[:, i].astype(np.longdouble) + (obs[:, i + 1] + y)[:, None, :])
        y = np.where((lengths.numpy() - 1 <= i)[:, None], 0.0, y)
        got = array(ahead[i])
        level = got[:, :1] - y[:, :1]  # up to a constant of each position
        expect("future of a block scan", bool((np.abs(got - y - level) <= 2 * tol).all()), got, y)
