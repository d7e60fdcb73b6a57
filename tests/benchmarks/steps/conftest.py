"""What the tests of gradient steps share."""

import pytest

from benchmarks.steps import baselines
from rankfold.planning import measure


@pytest.fixture(autouse=True)
def _nothing_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ceilings; a sweep of the collector would take most of a test's time."""
    monkeypatch.setattr(baselines, "COPY", {"cpu": 2**12})
    monkeypatch.setattr(baselines, "SIDE", {"cpu": 16})
    monkeypatch.setattr(measure.gc, "collect", lambda: 0)
