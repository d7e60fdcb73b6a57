"""Where tests find real feature sequences and piano rolls; they skip without them."""

import pytest

from .corpora import FOLDER

SEGMENTATION, MUSIC = FOLDER / "segmentation", FOLDER / "music"

needs_recordings = pytest.mark.skipif(
    not SEGMENTATION.is_dir(), reason=f"no recordings in {SEGMENTATION}; RANKFOLD_DATA names the folder that has them"
)
needs_music = pytest.mark.skipif(
    not MUSIC.is_dir(), reason=f"no piano rolls in {MUSIC}; RANKFOLD_DATA names the folder that has them"
)
