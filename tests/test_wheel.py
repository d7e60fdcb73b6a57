"""The wheel has every file of the package and nothing else, and runs where nothing else of the repository is.

`make wheel` installs it into an empty environment and trains a model there.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import rankfold

ROOT = Path(__file__).parents[1]
PACKAGES = ("rankfold", "rankfold_command")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = folder.glob("*.whl")
    return found


def test_the_wheel_has_the_files_of_the_package(wheel: Path) -> None:
    tree = {
        str(path.relative_to(ROOT / "src"))
        for package in PACKAGES
        for path in (ROOT / "src" / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    names = set(zipfile.ZipFile(wheel).namelist())
    about = f"rankfold-{rankfold.__version__}.dist-info/"
    extra = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
    assert names == tree | {about + name for name in extra}
    assert any(name.endswith(".toml") for name in tree)  # recipes
    assert wheel.name == f"rankfold-{rankfold.__version__}-py3-none-any.whl"


def test_the_command_runs_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*install, "--disable-pip-version-check", "--target", str(target), str(wheel)], check=True)
    environment = {**os.environ, "PYTHONPATH": str(target)}

    def output(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert output(str(target / "bin" / "rankfold"), "--version") == f"rankfold {rankfold.__version__}"
    assert Path(output(sys.executable, "-c", "import rankfold; print(rankfold.__file__)")).is_relative_to(target)
    assert "small-lhmm" in output(str(target / "bin" / "rankfold"), "train", "--list")
