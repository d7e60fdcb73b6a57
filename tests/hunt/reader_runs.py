"""Readers of runs through the commands: a damaged run evaluated and gone on with, and lines of text.

Read next: `reader_grammars.py`.
"""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tests.hunt import mutate, mutate_arrays
from tests.hunt.case_files import Files, packed, shorter, unpacked
from tests.hunt.kind import Case
from tests.hunt.model_seeds import RECIPE, files_in, signed
from tests.hunt.reader_text import SENTENCES
from tests.hunt.readers import Command, Outcome, json_bytes

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
    with tempfile.TemporaryDirectory() as at:
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
        return None if found["perplexity"] >= 1 or case["victim"].startswith("run/best") else f"perplexity: {found}"


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
    expression = "main([case['command'], str(folder / 'run'), *case['rest'], '--json'])"
    commands: tuple[str, ...] = ("score", "tag")
    families: tuple[str, ...] = ("lhmm",)

    def seeds(self) -> list[Files]:
        return [{name: data for name, data in run_files(family).items() if "best/" in name} for family in self.families]

    def draw(self, rng: Any) -> Case:
        own = Random(int(rng.integers(2**63)))
        text = own.choice(SENTENCES)
        if own.random() < 0.9:
            text = mutate.bytes_of(own, text, SENTENCES)
        files = {name: packed(data) for name, data in own.choice(self.valid()).items()}
        case: Case = {"files": files, "victim": "", "command": own.choice(self.commands), "rest": []}
        return {**case, "input": packed(text)}

    def smaller(self, case: Case) -> Any:
        for text in shorter(unpacked(case["input"])):
            yield {**case, "input": packed(text)}

    named = False

    def wrong(self, outcome: Outcome, files: Files, case: Case, scratch: Path) -> str | None:
        text = unpacked(case["input"])
        if outcome.error is not None:
            return None if "standard input" in str(outcome.error) else f"no line named: {outcome.error}"
        lines = text.split(b"\n")
        if not lines[-1]:
            lines.pop()
        found = outcome.printed.split("\n")[:-1]
        if len(found) != len(lines):
            return f"another number of lines: {len(found)}, not {len(lines)}"
        for record, line in zip(map(json.loads, found), lines, strict=True):
            value = record.get("log_prob", 0.0)
            if value is not None and not value <= 0:
                return f"log-probability: {record} of {line!r}"
        return None


class ParsedLines(Lines):
    """Lines to parse and to score by a grammar."""

    name = "parse lines"
    commands = ("parse", "score")
    families = ("tnpcfg",)


RUN_KINDS = (Evaluate, Resume, Lines, ParsedLines)
