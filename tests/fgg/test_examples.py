"""The examples run and do what they say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "nested_agreement.py"


def test_a_structure_goes_from_text_to_a_falling_loss() -> None:
    spec = importlib.util.spec_from_file_location("nested_agreement", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    losses = module.main(steps=30)
    assert losses[-1] < losses[10] < losses[0]
    assert losses[-1] < losses[0] - 3.0  # nats; by chance alone it would not move
    assert len(EXAMPLE.read_text().splitlines()) < 40
