"""Where tests find real texts; they skip without them."""

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("RANKFOLD_DATA", Path(__file__).parents[3] / "shared" / "data"))

needs_texts = pytest.mark.skipif(
    not (FOLDER / "ptb-lm").is_dir(), reason=f"no texts in {FOLDER}; RANKFOLD_DATA names the folder that has them"
)
