"""`rankfold completion`: what real shells complete, and that the table is that of the parsers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rankfold.cli import COMMANDS, main
from rankfold.cli.completion import build_table, read_table, script
from rankfold.training.recipes import recipe_groups

ASK = """
source "$1"
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
complete -p rankfold > /dev/null || exit 3
_rankfold
printf '%s\\n' "${COMPREPLY[@]}"
"""


def test_the_table_is_that_of_the_parsers() -> None:
    assert read_table() == build_table(), "run python -m rankfold.cli.completion, which writes completion.json anew"
    assert [name for name in read_table() if " " not in name] == list(COMMANDS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    (tmp_path / "rows.txt").write_text("")
    return tmp_path


def bash(folder: Path, *words: str) -> set[str]:
    """What bash offers for the last of these words."""
    if shutil.which("bash") is None:
        pytest.skip("no bash on this machine")
    (folder / "script.bash").write_text(script("bash"))
    command = ["bash", "--norc", "-c", ASK, "ask", "script.bash", "rankfold", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    return set(filter(None, done.stdout.split("\n")))


def test_bash_completes_commands(folder: Path) -> None:
    assert bash(folder, "") == {*COMMANDS, "--help", "--version"}
    assert bash(folder, "ev") == {"evaluate"}
    assert bash(folder, "data", "") >= {"list", "get"}


def test_bash_completes_options(folder: Path) -> None:
    assert bash(folder, "train", "--re") == {"--recipe", "--resume"}
    assert bash(folder, "evaluate", "runs", "--base") == {"--baselines"}
    assert bash(folder, "data", "get", "--o") == {"--out"}
    assert bash(folder, "train", "--set", "a=b", "--qu") == {"--quiet"}
    assert bash(folder, "dance", "--") == set()


def test_bash_completes_recipes_and_choices(folder: Path) -> None:
    listed = {name for group in recipe_groups().values() for name in group}
    assert bash(folder, "train", "--recipe", "small-") == {name for name in listed if name.startswith("small-")}
    assert bash(folder, "train", "--recipe", "") >= listed
    assert bash(folder, "explain", "demo-") == {"demo-grammar", "demo-text"}
    assert bash(folder, "score", "runs", "--device", "") == {"auto", "cpu", "cuda"}
    assert bash(folder, "sample", "runs", "--num", "") == set()  # any number


def test_bash_completes_paths(folder: Path) -> None:
    assert bash(folder, "train", "--out", "r") == {"runs"}  # folders alone
    assert bash(folder, "score", "runs", "r") == {"runs", "rows.txt"}
    assert bash(folder, "evaluate", "runs", "--trees", "a.trees", "r") == {"runs", "rows.txt"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("rankfold ev", {"evaluate"}),
        ("rankfold train --re", {"--recipe", "--resume"}),
        ("rankfold train --recipe small-b", {"small-banded", "small-block"}),
        ("rankfold score runs --device ", {"auto", "cpu", "cuda"}),
    ],
)
def test_fish_completes(line: str, expected: set[str], folder: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("no fish on this machine")
    (folder / "script.fish").write_text(script("fish"))
    command = ["fish", "--no-config", "-c", f"source script.fish; complete -C '{line}'"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=60)
    assert {row.split("\t")[0] for row in done.stdout.splitlines()} == expected


def test_zsh_reads_the_script(folder: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("no zsh on this machine")
    (folder / "script.zsh").write_text(script("zsh"))
    code = "autoload -Uz compinit; compinit -u -d dump; source ./script.zsh; print $_comps[rankfold]"
    done = subprocess.run(["zsh", "-f", "-c", code], cwd=folder, capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("_rankfold", "")


def test_the_command_prints_the_script_without_torch() -> None:
    code = """
import sys, rankfold_command
sys.argv[1:] = ["completion", "bash"]
assert rankfold_command.main() == 0
assert "torch" not in sys.modules and "numpy" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == script("bash")


def test_a_shell_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["completion", "csh"])
    assert stop.value.code == 2
    assert "'bash', 'zsh', 'fish'" in capsys.readouterr().err
