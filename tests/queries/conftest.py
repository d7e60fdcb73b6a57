"""Fresh memory is poisoned in every test of this folder."""

import pytest


@pytest.fixture(autouse=True)
def _poison(poisoned_memory: None) -> None:
    """An entry of fresh memory that nobody wrote shows up as NaN."""
