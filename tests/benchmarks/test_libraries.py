"""`python -m benchmarks libraries`: measurement and report, without the other libraries."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import COMMANDS
from benchmarks.libraries import few_states, report
from benchmarks.libraries.cases import BANDED, DENSE, LARGE_STATES, Em, Own, Size, sum_name
from benchmarks.libraries.command import _plain
from benchmarks.libraries.few_states import Few
from benchmarks.libraries.peers import HMMLEARN, MAKERS, OURS, RANKFOLD_64
from benchmarks.libraries.process import Case, Outcome, in_process, num_repeats, time_together
from rankfold.cli.bench import Check
from rankfold.planning.measure import Spread

ROOT = Path(__file__).parents[2]


def taken(ms: float) -> Spread:
    return Spread(ms, 0.9 * ms, 1.1 * ms, 5)


def results() -> report.Results:
    size = Size(64, 4)
    em = Em({64: {name: taken(2.0 if name in OURS else 1.0 + i) for i, name in enumerate(MAKERS)}}, {}, 1.0)
    em.large[HMMLEARN] = Outcome(failure="asked for 9 GiB")
    em.large[RANKFOLD_64] = Outcome(taken(3000.0), 0.25)
    own = Own(
        long={},
        long_size=None,
        memory={"low rank": Outcome(taken(1.0), 0.5), DENSE: Outcome(taken(2.0), 1.0)},
        by_states={64: {"low rank": taken(1.0), DENSE: taken(2.0)}},
        by_rank={4: taken(1.0), 16: taken(4.0)},
        structured={DENSE: taken(2.0), BANDED: taken(0.5), sum_name(size): taken(1.5)},
        sweep_size=size,
    )
    few = Few(
        10,
        {"EM step, 1 x 10 frames, 2 states": {few_states.OURS: taken(20.0), few_states.PEER: taken(30.0)}},
        {"score, 1 x 10 frames, 2 states": {few_states.OURS: taken(4.0), few_states.PEER: taken(2.0)}},
    )
    return report.Results({"date": "today"}, [Check("log Z", 1e-12, 1e-8)], em, own, few, 1.0)


def test_few_states_are_reported_by_the_step_and_losses_in_bold() -> None:
    said = report.text(results())
    assert re.search(r"EM step, 1 x 10 frames, 2 states +\| +3.00 ms \(.*\) \| +2.00 ms \(.*\) \| +1.50x \|", said)
    assert re.search(
        r"score, 1 x 10 frames, 2 states +\| +2.00 ms \(.*\) \| +4.00 ms \(.*\) \| +\*\*0.50x\*\* \|", said
    )
    assert "- score, 1 x 10 frames, 2 states: rankfold takes 2.00x the time of hmmlearn, scaling." in said
    assert "EM step, 1 x 10 frames, 2 states: rankfold takes" not in said


def test_the_report_has_times_ratios_failures_and_losses() -> None:
    text = report.text(results())
    assert "2.00 ms (1.80 to 2.20, n = 5)" in text
    assert "3.00 s (2.70 to 3.30, n = 5)" in text
    assert "fails: asked for 9 GiB" in text
    assert "- Gradient step, 64 states: rank 16 takes 2.00x the time of dense." in text
    assert "equally long near rank 8" in text
    assert "| log Z " in text
    assert f"EM step, {LARGE_STATES:,} states" in report.ratios(results())


def test_every_number_is_plain_data() -> None:
    found = _plain(results())
    assert found["own"]["by_rank"][4] == {"median": 1.0, "low": 0.9, "high": 1.1, "repeats": 5}
    assert found["checks"][0]["what"] == "log Z"


def test_cases_take_turns_as_often_as_their_first_call_allows() -> None:
    calls: list[str] = []
    cases = {name: Case(lambda name=name: calls.append(name), lambda: calls.append("prepare")) for name in "ab"}
    found = time_together(cases, 2)
    assert {name: spread.repeats for name, spread in found.items()} == {"a": 2, "b": 2}
    assert calls[::2] == ["prepare"] * (len(calls) // 2)
    # Two calls to warm up; then two in a row for each time, as they are short.
    assert "".join(calls[1::2]) == "aabb" + "aabb" * 2
    assert [num_repeats(ms, 21) for ms in (1e3, 2e3, 5e3, 2e4)] == [21, 7, 3, 2]


def test_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    task = {"what": "gradient", "kind": "low rank", "size": vars(Size(8, 2, 1, 3)), "plain": False, "repeats": 2}
    found = in_process(task, limit_s=60)
    assert found.failure is None
    assert found.spread is not None
    assert found.spread.repeats == 2
    assert "unknown" in (in_process({**task, "kind": "unknown"}, limit_s=60).failure or "")


def test_commands_are_named() -> None:
    done = subprocess.run([sys.executable, "-m", "benchmarks"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"{{{','.join(COMMANDS)}}}" in done.stderr
    assert "steps,libraries," in done.stderr
    wrong = subprocess.run([sys.executable, "-m", "benchmarks", "dance"], cwd=ROOT, capture_output=True, check=False)
    assert wrong.returncode == 2
