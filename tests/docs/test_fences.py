"""Every code fence of the README and the docs runs, and prints what the page says it prints."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks import __main__ as benchmarks
from rankfold import cli

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


class Fence(NamedTuple):
    language: str
    text: str
    line: int


def fences(page: Path) -> list[Fence]:
    """The fences of a page, in order."""
    found, language, start, lines = [], None, 0, []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        mark = re.match(r"```(\S*)\s*$", line)
        if language is None and mark:
            language, start, lines = mark[1], number, []
        elif language is not None and line == "```":
            found.append(Fence(language, "\n".join(lines), start))
            language = None
        elif language is not None:
            lines.append(line)
    assert language is None, f"{page.name}:{start}: a fence that never ends"
    return found


def given(page: Path) -> Any:
    """A page as a parameter; those that start processes, which load torch each, are slow."""
    marks = [pytest.mark.slow] if "\ntorchrun " in page.read_text() else []
    return pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks)


@pytest.mark.parametrize("page", [given(page) for page in PAGES])
def test_fences_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python fences of a page run one after the other in one namespace; a `text` fence is the output before it."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": page.stem}
    printed = None
    for fence in fences(page):
        where = f"{page.name}:{fence.line}"
        if fence.language == "python":
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(fence.text, where, "exec"), namespace)
            printed = output.getvalue()
        elif fence.language == "sh":
            printed = "".join(run(line, where) for line in fence.text.splitlines())
        elif fence.language == "text":
            assert printed is not None, f"{where}: output of nothing"
            assert printed.strip() == fence.text.strip(), where
        else:
            pytest.fail(f"{where}: a fence of {fence.language or 'no language'}; use python, sh or text")


def run(line: str, where: str) -> str:
    """Run a line of `rankfold` or `python -m benchmarks` in this process: torch is loaded once.

    A `make` line must name a target; continuous integration runs those of the README.
    """
    program, *arguments = shlex.split(line)
    if program == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(arguments) <= set(targets), f"{where}: {line} names no target"
        return ""
    if program in ("git", "cd"):
        return ""
    if program == "pip":  # tests/test_wheel.py installs what is built
        assert arguments == ["install", "."], f"{where}: {line} is not how this package is installed"
        return ""
    if program == "torchrun":  # its processes load torch themselves
        paths = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "torch.distributed.run", *arguments]
        done = subprocess.run(
            command, check=False, env={**os.environ, **paths}, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{where}: {done.stderr[-2000:]}"
        return done.stdout
    laboratory = program == "python" and arguments[:2] == ["-m", "benchmarks"]  # of the repository, not installed
    assert laboratory or program == "rankfold", f"{where}: {line} is not a command this test knows how to run"
    main, arguments = (benchmarks.main, arguments[2:]) if laboratory else (cli.main, arguments)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(arguments)
        except SystemExit as stop:  # of the parser
            status = stop.code
    assert status == 0, f"{where}: {line}\n{err.getvalue()}"
    return out.getvalue()


def test_the_readme_runs_its_tests_in_continuous_integration() -> None:
    commands = [
        line for fence in fences(ROOT / "README.md") if fence.language == "sh" for line in fence.text.splitlines()
    ]
    assert {"make demo", "make test"} <= set(commands)


def test_links_between_pages_lead_somewhere() -> None:
    code = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
    broken = [
        f"{page.name}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", code.sub("", page.read_text()))
        if not (page.parent / target).exists()
    ]
    assert broken == []


@pytest.mark.parametrize(
    "text",
    [
        "```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n",
        "```sh\nrankfold score nowhere words.txt\n```\n",
        "```sh\nrankfold dance\n```\n",
        "```sh\npython -m benchmarks dance\n```\n",
    ],
)
def test_a_fence_that_fails_is_caught(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(AssertionError, match=r"page\.md:(5|1: .*(nowhere|dance))"):
        test_fences_run(page, tmp_path, monkeypatch)
