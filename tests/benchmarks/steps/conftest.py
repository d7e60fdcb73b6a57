"""What the tests of the bench share."""

import pytest

from rankfold.planning import measure


@pytest.fixture(autouse=True)
def _no_sweeping_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is large: a sweep of the collector would take most of a test's time."""
    monkeypatch.setattr(measure.gc, "collect", lambda: 0)
