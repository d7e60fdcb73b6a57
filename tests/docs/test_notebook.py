"""The notebook of the first hour runs from top to bottom, in a kernel of its own, and shows its progress there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_hour.ipynb"
EXECUTE = """
import sys, nbclient, nbformat
source, target, folder = sys.argv[1:]
book = nbformat.read(source, as_version=4)
nbclient.NotebookClient(book, kernel_name="python3", timeout=300, resources={"metadata": {"path": folder}}).execute()
nbformat.write(book, target)
"""


def test_the_notebook_is_saved_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert [cell["outputs"] for cell in cells if cell["cell_type"] == "code" and cell["outputs"]] == []


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path) -> None:
    for package in ("nbclient", "ipykernel"):
        pytest.importorskip(package, reason="the extra notebook is not installed")
    (tmp_path / "folder").mkdir()
    paths = os.pathsep.join(filter(None, [str(NOTEBOOK.parents[1] / "src"), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths, "IPYTHONDIR": str(tmp_path / "ipython")}
    command = [sys.executable, "-c", EXECUTE, str(NOTEBOOK), str(tmp_path / "done.ipynb"), str(tmp_path / "folder")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    cells = json.loads((tmp_path / "done.ipynb").read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    text = "".join("".join(output.get("text", "")) for output in outputs)
    assert "perplexity of the test set: " in text
    bars = [output for output in outputs if "application/vnd.jupyter.widget-view+json" in output.get("data", {})]
    assert bars if find_spec("ipywidgets") else "update 150/150" in text
