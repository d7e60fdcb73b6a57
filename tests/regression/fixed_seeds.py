"""Numbers of fixed seeds: log Z, gradients, posteriors, best structures, samples, losses, EM steps.

    python -m tests.regression.fixed_seeds --exact FILE      writes the bits of every tensor, as digests
    python -m tests.regression.fixed_seeds --compare FILE    says which bits differ from those of FILE
    python -m tests.regression.fixed_seeds --write           replaces fixed_seeds.json, after a deliberate change

`--device cuda` takes a GPU with its precisions and captured graphs, `--only PREFIX` some of the cases. Bits are those
of one machine and one version of torch; `fixed_seeds.json` holds checksums, which allow another order of sums.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.regression.model_seeds import estimators, models
from tests.regression.recursion_seeds import INF, Case, on_gpu, recursions, short

DATA = Path(__file__).with_suffix(".json")


def cases(device: str = "cpu") -> Iterator[Case]:
    if device != "cpu":
        yield from on_gpu()
        return
    yield from recursions()
    yield from models()
    yield from estimators()


def as_tensor(x: Any) -> Tensor:
    """Tensors and arrays as they are; nested lists of numbers as all their numbers and all their lengths in a row."""
    if isinstance(x, Tensor):
        return x.detach().cpu()
    if isinstance(x, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(x))
    return torch.tensor(list(_flat(x)), dtype=torch.float64)


def _flat(x: Any) -> Iterator[float]:
    if isinstance(x, list | tuple):
        yield float(len(x))
        for part in x:
            yield from _flat(part)
    else:
        yield float(x)


def checksum(x: Any) -> list[Any]:
    """Each entry weighted by its place, so that exchanged entries change the sum; and the size of what was added up.

    Whole numbers have a sum alone. Entries that are not finite are counted by their places, as a third number.
    """
    x = as_tensor(x).flatten()
    place = torch.arange(1, x.numel() + 1)
    if not x.is_floating_point():
        return [int((x.long() * place).sum())]
    x, odd = x.double(), ~torch.isfinite(x)
    kinds = torch.where(x.isnan(), 1, torch.where(x > 0, 2, 3))
    weighted = torch.where(odd, 0.0, x) * place / max(x.numel(), 1)
    sums = [float(weighted.sum()).hex(), f"{float(weighted.abs().sum()):.2e}"]
    return [*sums, int((kinds * odd * place).sum())] if odd.any() else sums


def digest(x: Any) -> list[Any]:
    """Kind, shape and the digest of all bytes; the checksum says how far two are apart."""
    x = as_tensor(x).contiguous()
    data = x.reshape(-1).view(torch.uint8).numpy().tobytes() if x.numel() else b""
    return [short(x.dtype), list(x.shape), hashlib.sha256(data).hexdigest(), checksum(x)]


def apart(found: list[Any], expected: list[Any]) -> float:
    """How far two checksums are apart, as a share of the size; infinite if something whole differs."""
    if len(found) != len(expected) or found[2:] != expected[2:]:
        return INF
    if len(found) == 1:
        return 0.0 if found == expected else INF
    gap = abs(float.fromhex(found[0]) - float.fromhex(expected[0]))
    return gap / float(expected[1]) if gap else 0.0


GRADIENT = ".grad."
ROUNDING = 0.01  # of the tolerance, as a share of a case's largest gradient


def moved(found: dict[str, list[Any]], expected: dict[str, list[Any]], tolerance: float) -> dict[str, float]:
    """By name the checksums that are further apart than `tolerance`, as a share of their size.

    Gradients are sums of larger numbers, and some are zero but for rounding, such as those of a bias before a softmax:
    a gradient may also move by what rounding does to the largest one of its case.
    """
    largest = max((float(x[1]) for name, x in expected.items() if GRADIENT in f".{name}" and len(x) > 1), default=0.0)
    out: dict[str, float] = {}
    for name, known in expected.items():
        gap = apart(found[name], known)
        size = float(known[1]) if len(known) > 1 else 0.0
        spare = ROUNDING * largest if GRADIENT in f".{name}" else 0.0
        if not (gap <= tolerance or gap * size <= tolerance * (size + spare)):
            out[name] = gap
    return out


def exact(device: str, only: str) -> dict[str, list[Any]]:
    """The digest of every tensor; a case that fails has its error in place of them."""
    found: dict[str, list[Any]] = {}
    for case in cases(device):
        if not case.name.startswith(only):
            continue
        try:
            found |= {f"{case.name}: {name}": digest(x) for name, x in case.make().items()}
        except Exception as error:
            found[case.name] = [f"{type(error).__name__}: {error}"]
            print(f"{case.name}: {found[case.name][0]}", file=sys.stderr)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exact", metavar="FILE", type=Path, help="write the bits of every tensor")
    parser.add_argument("--compare", metavar="FILE", type=Path, help="say which bits differ")
    parser.add_argument("--write", action="store_true", help="replace fixed_seeds.json")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--only", default="", metavar="PREFIX")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.write:
        lines = [
            f"{json.dumps(case.name)}: {json.dumps({name: checksum(x) for name, x in case.make().items()})}"
            for case in cases()
        ]
        DATA.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return 0
    machine = [
        torch.__version__,
        torch.cuda.get_device_name() if given.device == "cuda" else torch.backends.cpu.get_cpu_capability(),
    ]
    found = exact(given.device, given.only)
    if given.exact:
        given.exact.write_text(json.dumps({"machine": machine, "tensors": found}, indent=0))
    if not given.compare:
        print(f"{len(found)} tensors")
        return 0
    known = json.loads(given.compare.read_text())
    if known["machine"] != machine:
        print(f"another machine or torch: {known['machine']}, here {machine}")
    expected = {name: x for name, x in known["tensors"].items() if name.startswith(given.only)}
    different = 0
    for name in sorted(expected.keys() | found.keys()):
        one, other = found.get(name), expected.get(name)
        if one == other:
            continue
        different += 1
        if one is None or other is None or len(one) != len(other) or len(one) == 1:
            print(f"{name}: {'missing here' if one is None else 'new' if other is None else f'{other} -> {one}'}")
        elif one[:2] != other[:2]:
            print(f"{name}: {other[0]} {other[1]} -> {one[0]} {one[1]}")
        else:
            print(f"{name}: bits differ, checksums by {apart(one[3], other[3]):.2g} of the size")
    print(f"{len(found)} tensors, {different} differ")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
