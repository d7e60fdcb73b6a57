"""A process of its own for one measurement: `python -m benchmarks.libraries.worker TASK`, the task as JSON.

It is limited in memory (the call fails) and in time (the process is killed by its own alarm), and writes
one JSON object. Read next: `measure.py`, which starts it.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
from typing import Any

import torch

from benchmarks.libraries.hmm import random_hmm
from benchmarks.libraries.measure import GIB, NUM_THREADS, Case, memory_gib, once
from benchmarks.libraries.own import GradientStep, Size
from benchmarks.libraries.peers import make


def main(task: dict[str, Any]) -> dict[str, Any]:
    """Prepare, then time the call; whatever goes wrong is the answer."""
    torch.set_num_threads(NUM_THREADS)
    before = memory_gib("VmRSS")
    if task["memory_gib"] is not None:
        limit = int(task["memory_gib"] * GIB)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    seconds: list[float] = []
    failure = None
    try:
        case = _case(task)
        for _ in range(task["repeats"]):
            case.prepare()
            # The default action of the alarm ends the process even inside a library's own loop.
            signal.alarm(task["limit_s"])
            seconds.append(once(Case(case.run)))
            signal.alarm(0)
    except Exception as error:
        signal.alarm(0)
        failure = shortened(error)
    return {"seconds": seconds, "failure": failure, "peak_gib": memory_gib("VmHWM") - before}


def _case(task: dict[str, Any]) -> Case:
    if task["what"] == "em":
        return make(task["library"], random_hmm(task["num_states"])).case()
    return GradientStep(task["kind"], Size(**task["size"]), plain=task["plain"]).case()


def shortened(error: Exception) -> str:
    """The reason in a few words; an allocation that failed, in GiB."""
    text = " ".join(str(error).split())
    asked = re.search(r"(\d{9,}) bytes", text)
    if asked:
        return f"asked for {int(asked[1]) / GIB:,.0f} GiB"
    asked = re.search(r"allocate ([\d.]+) ([KMGT]iB)", text)
    if asked:
        return f"no memory for {asked[1]} {asked[2]} more"
    if isinstance(error, MemoryError):
        return "out of memory"
    return f"{type(error).__name__}: {text}"[:120]


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
