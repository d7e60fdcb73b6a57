"""Kernel tests run on poisoned memory."""

import pytest


@pytest.fixture(autouse=True)
def _poisoned(poisoned_memory: None) -> None:
    """Every test here."""
