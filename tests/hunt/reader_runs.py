"""Readers of runs through the commands: a damaged run evaluated and gone on with, and lines of text."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tests.hunt import mutate, mutate_arrays
from tests.hunt.case_files import Files, is_plain, packed, shorter, unpacked
from tests.hunt.kind import Case
from tests.hunt.model_seeds import RECIPE, files_in, signed
from tests.hunt.reader_text import SENTENCES, sentences
from tests.hunt.readers import Command, Outcome, fast_folder, json_bytes

TEXT = {"text/train.txt": SENTENCES[0] * 3, "text/valid.txt": SENTENCES[0], "text/test.txt": SENTENCES[0]}
TRAINING = "'--data', str(folder / 'text'), '--out', str(folder / 'run')"


def put_plain(folder: Path, files: Files) -> None:
    """Write files below a folder."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


@cache
def run_files(family: str, shard_mb: float = 0.0) -> Files:
    """A run stopped after its last update, with the text it is of; checkpoints after the updates 1, 2 and 3."""
    import contextlib
    import io

    from rankfold.cli import main

    recipe = RECIPE.replace('"lhmm"', f'"{family}"')
    if family.endswith("pcfg"):
        sizes = "num_nonterminals = 3\nnum_preterminals = 4\ndim = 4\nrank = 4\n"
        recipe = f'[model]\nfamily = "{family}"\n{sizes}[data]\ntokens = 40\n[train]\nupdates = 3\n'
    recipe += f"checkpoint_every = 1\nevaluate_every = 2\naverage = 0.5\ncheckpoint_shard_mb = {shard_mb}\n"
    with tempfile.TemporaryDirectory(dir=fast_folder()) as at:
        folder = Path(at)
        put_plain(folder, {**TEXT, "a.toml": recipe.encode()})
        arguments = ["train", "--recipe", f"{at}/a.toml", "--data", f"{at}/text", "--out", f"{at}/run"]
        with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()):
            assert main(arguments) == 0, said.getvalue()
        found = files_in(folder)
    return {name: data for name, data in found.items() if name != "a.toml" and not name.endswith("lock")}


def damaged_by_name(rng: Random, name: str, data: bytes, others: list[bytes]) -> bytes:
    """A file of a run, damaged as what it is."""
    if name.endswith(".safetensors"):
        return signed(rng, data) if rng.random() < 0.5 else mutate_arrays.header_bytes(rng, data)
    if name.endswith(".json"):
        return json_bytes(rng, data, [])
    if name.endswith(".toml"):
        return mutate.toml_bytes(rng, data.decode())
    return mutate.bytes_of(rng, data, others)


class Evaluate(Command):
    """The perplexity of a text under the best model of a run, one of its files damaged."""

    name = "evaluate a damaged run"
    expression = "main(['evaluate', str(folder / 'run'), '--data', str(folder / 'text'), '--json'])"

    def seeds(self) -> list[Files]:
        return [run_files("lhmm"), run_files("tnpcfg")]

    def victims(self, files: Files) -> list[str]:
        own = [name for name in files if name.startswith("run/best/")]
        return [*own, *own, "run/recipe.toml", "text/test.txt", "run/metrics.jsonl", "run/data.json"]

    def damaged(self, rng: Random, name: str, data: bytes, others: list[bytes]) -> bytes:
        return damaged_by_name(rng, name, data, others)

    def wrong(self, outcome: Outcome, files: Files, case: Case, scratch: Path) -> str | None:
        if outcome.error is not None:
            return None
        found = json.loads(outcome.printed)
        if case["victim"].startswith("run/best"):  # another model: sentences may be impossible, and perplexity infinite
            return None
        return None if (found["perplexity"] or 0) >= 1 else f"perplexity: {found}"


class Resume(Command):
    """Going on with a run whose checkpoint, recipe, metrics or text are damaged; nothing of it is lost."""

    name = "resume a damaged run"
    expression = f"main(['train', '--resume', {TRAINING}, '--json'])"
    written = ("run/",)

    def seeds(self) -> list[Files]:
        return [run_files("lhmm"), run_files("lhmm", 0.03)]

    def victims(self, files: Files) -> list[str]:
        own = [name for name in files if name.startswith("run/checkpoint")]
        return [*own * 4, *[name for name in files if name.startswith(("run/", "text/train"))]]

    def damaged(self, rng: Random, name: str, data: bytes, others: list[bytes]) -> bytes:
        return damaged_by_name(rng, name, data, others)

    def wrong(self, outcome: Outcome, files: Files, case: Case, scratch: Path) -> str | None:
        gone = [name for name in files if not (scratch.parent / "files" / name).exists()]
        if outcome.error is not None and gone:
            return f"files lost: {gone}"
        return None


class Lines(Command):
    """Lines for a command, from standard input or from a file: one line of output for each, or a refusal."""

    name = "score lines"
    expression = "ask(folder, case)"
    imports = """\
from rankfold.cli import main


def ask(folder, case):
    text = "-" if "input" in case else str(folder / "lines.txt")
    return main([case["command"], str(folder / "run"), text, "--json"])
"""
    commands: tuple[str, ...] = ("score", "tag")
    families: tuple[str, ...] = ("lhmm",)
    named = False

    def seeds(self) -> list[Files]:
        runs = [{name: x for name, x in run_files(family).items() if "best/" in name} for family in self.families]
        return [{"lines.txt": text, **files} for text in SENTENCES for files in runs]

    def options(self, rng: Random) -> dict[str, Any]:
        return {"command": rng.choice(self.commands)}

    def draw(self, rng: np.random.Generator) -> Case:
        case = super().draw(rng)
        if is_plain(case["files"].get("lines.txt")) and rng.random() < 0.5:
            case["input"] = case["files"].pop("lines.txt")
        return case

    def smaller(self, case: Case) -> Iterator[Case]:
        if "input" not in case:
            yield from super().smaller(case)
            return
        for text in shorter(unpacked(case["input"])):
            yield {**case, "input": packed(text)}

    def wrong(self, outcome: Outcome, files: Files, case: Case, scratch: Path) -> str | None:
        text = unpacked(case["input"]) if "input" in case else files.get("lines.txt")
        valid = text is not None and sentences(text) is not None
        if outcome.error is not None:
            if valid and not (case["command"] == "parse" and re.search(rb"[()]", text or b"")):
                return f"valid lines refused: {outcome.error}"
            named = ("standard input" if "input" in case else "lines.txt") in str(outcome.error)
            return None if named else f"no line named: {outcome.error}"
        if not valid or text is None:
            return "lines that break a rule were read"
        lines = text.decode().split("\n")
        if not lines[-1]:
            lines.pop()
        found = [json.loads(line) for line in outcome.printed.split("\n")[:-1]]
        if len(found) != len(lines):
            return f"another number of lines: {len(found)}, not {len(lines)}"
        for record, line in zip(found, lines, strict=True):
            if case["command"] == "parse":
                continue
            value, words = record.get("log_prob"), record["words"] if "words" in record else record["line"].split()
            if words != line.split():
                return f"another line: {record} of {line!r}"
            if value is not None and not value <= 0:
                return f"log-probability: {record} of {line!r}"
        return None


class ParsedLines(Lines):
    """Lines to parse and to score by a grammar."""

    name = "parse lines"
    commands = ("parse", "score")
    families = ("tnpcfg",)


RUN_KINDS = (Evaluate, Resume, Lines, ParsedLines)
