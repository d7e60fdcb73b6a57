"""The installed command: threads wait without spinning, unless the user said otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = "import os, sys, rankfold_command; assert 'torch' not in sys.modules; sys.argv = ['rankfold', '--version']\n"
CODE += "try: rankfold_command.main()\nexcept SystemExit: print(os.environ['OMP_WAIT_POLICY'])"


@pytest.mark.parametrize(("before", "after"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_how_threads_wait(before: str | None, after: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {} if before is None else {"OMP_WAIT_POLICY": before}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["rankfold", "0.1.0", after]
