"""Readers of factor graph grammars: text, JSON, queries, and the command that explains one; and addresses of data."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tests.hunt import mutate
from tests.hunt.case_files import Files
from tests.hunt.kind import Case
from tests.hunt.readers import Command, Outcome, Reader, json_bytes

SMALL = """\
domain N = 2
observed V = "a" "b" "c"
factor first: N = [0.5, 0.5]
factor rule: N, N, N
factor emit: N, V = [[0.2, 0.3, 0.5], [1, 0, 0]]
symbol X: N
start S
S() -> first(n) X(n)
X(n: N) -> rule(n, l, r) X(l) X(r)
leaf: X(n) -> emit(n, w)
"""


@cache
def texts() -> list[bytes]:
    """Small grammars as text."""
    from rankfold.fgg import library_names, library_text

    return [SMALL.encode(), *(library_text(name).encode() for name in library_names())]


class GrammarText(Reader):
    """A grammar as text: what it says can be written and read again."""

    name = "read grammar text"
    imports = "from rankfold import fgg"
    expression = "fgg.read(folder / 'a.fgg', prune=case['prune'])"
    said = ("Nonterminal ",)
    file = "a.fgg"

    def seeds(self) -> list[Files]:
        return [{"a.fgg": text} for text in texts()]

    def options(self, rng: Random) -> dict[str, Any]:
        return {"prune": rng.random() < 0.3}

    def damaged(self, rng: Random, name: str, data: bytes, others: list[bytes]) -> bytes:
        kind = rng.random()
        if kind < 0.4:
            return mutate.bytes_of(rng, data, others)
        if kind < 0.45:  # nested without end
            spot = rng.choice([at for at, letter in enumerate(data) if letter in b"=(:"] or [0]) + 1
            return data[:spot] + rng.choice((b"[", b"(", b"[1,", b"`")) * rng.choice((10, 2000, 100_000)) + data[spot:]
        tokens = rng.choice(others).decode().split(" ") if kind < 0.6 else data.decode().split(" ")
        own = data.decode().split(" ")
        for _ in range(rng.choice((1, 1, 2, 3))):
            extra = (
                "= 0",
                "= -1",
                "= 99999999999",
                "= [[1], [2, 3]]",
                "= nan",
                "batched",
                "given",
                "-> 1",
                "+",
                "->",
                "rank",
            )
            own[rng.randrange(len(own))] = rng.choice((rng.choice(tokens), rng.choice(extra), ""))
        return " ".join(own).encode()

    def wrong(self, outcome: Outcome, files: Files, case: Case, scratch: Path) -> str | None:
        if outcome.error is not None:
            return None
        from rankfold import fgg

        try:
            text = fgg.format_text(outcome.value)
        except fgg_unsupported():
            return None
        return None if fgg.parse(text).hrg == outcome.value.hrg else "another grammar when read again"


def fgg_unsupported() -> type[Exception]:
    """What `format_text` raises of nodes that texts cannot say."""
    from rankfold.errors import UnsupportedError

    return UnsupportedError


class GrammarJson(GrammarText):
    """A grammar as JSON."""

    name = "read grammar json"
    expression = "fgg.read(folder / 'a.json', prune=case['prune'])"

    def seeds(self) -> list[Files]:
        from rankfold import fgg

        sizes = {"hmm": {"Z": 2, "V": 3}, "pcfg": {}, "lhmm": {}, "hsmm": {}}
        made = [fgg.parse(SMALL)]
        for name, known in sizes.items():
            made.append(fgg.parse(fgg.library_text(name)).with_domains(known))
        return [{"a.json": (json.dumps(fgg.to_json(grammar)) + "\n").encode()} for grammar in made]

    def damaged(self, rng: Random, name: str, data: bytes, others: list[bytes]) -> bytes:
        return json_bytes(rng, data, others)

    def wrong(self, outcome: Outcome, files: Files, case: Case, scratch: Path) -> str | None:
        if outcome.error is not None:
            return None
        from rankfold import fgg

        again = fgg.from_json(json.loads(json.dumps(fgg.to_json(outcome.value))))
        return None if again.hrg == outcome.value.hrg else "another grammar when read again"


class ExplainGrammar(Command):
    """What a grammar costs, with sizes given."""

    name = "explain a grammar"
    expression = "main(['explain', str(folder / 'a.fgg'), '--length', '4', '--json', *case['sizes']])"
    said = ("Nonterminal ",)
    named = False

    def seeds(self) -> list[Files]:
        return [{"a.fgg": text} for text in texts()]

    def options(self, rng: Random) -> dict[str, Any]:
        values = ("3", "0", "-1", "9999999", "9" * 30, "x", "", "1e3", "\u0663", "3.0", " 4 ")
        names = ("Z", "V", "N", "R", "Q", "", "Z.V", "nobody")
        return {
            "sizes": [
                x for _ in range(rng.randrange(4)) for x in ("--set", f"{rng.choice(names)}={rng.choice(values)}")
            ]
        }

    def draw(self, rng: np.random.Generator) -> Case:
        case = super().draw(rng)
        case.pop("untouched", None)  # a grammar may want sizes
        return case

    def damaged(self, rng: Random, name: str, data: bytes, others: list[bytes]) -> bytes:
        return GrammarText.damaged(self, rng, name, data, others)  # type: ignore[arg-type]


class Queries(Reader):
    """A question to a small grammar: an answer or a refusal."""

    name = "read query"
    imports = """\
import math
from rankfold import fgg

GRAMMAR = fgg.library("hmm", Z=2, V=3)


def tuples(x):
    return [tuple(y) if isinstance(y, list) else y for y in x] if isinstance(x, list) else x


def answer(query):
    options = {key: value for key, value in query.items() if key not in ("words", "arcs")}
    if "arcs" in query:
        asked = fgg.automaton_query(tuples(query["arcs"]), **options)
    else:
        asked = fgg.string_query(query["words"], **{**options, "brackets": tuples(options.get("brackets", []))})
    return fgg.conjoin(GRAMMAR, asked)
"""
    expression = "answer(case['query'])"
    named = False
    said = ("Nonterminal ",)

    def draw(self, rng: np.random.Generator) -> Case:
        own = Random(int(rng.integers(2**63)))
        words: tuple[Any, ...] = (*(0, 1, 2) * 8, None, None, 3, -1, -2, 10**6, 2**63, "a", "", "0")
        domain = own.choice((None, None, None, "V", "Z", "nobody", ""))
        states = (0, 1, 1, 2, 2, 3, -1, 9)
        if own.random() < 0.4:
            read = [None, own.choice(words), [own.choice(words[:6]) for _ in range(own.randrange(3))]]
            arcs = [[own.choice(states), own.choice(states), own.choice(read)] for _ in range(own.randrange(5))]
            finals = [own.choice(states) for _ in range(own.randrange(3))]
            query = {"arcs": arcs, "initial": own.choice(states), "finals": finals, "domain": domain}
        else:
            rows = [
                [own.choice(words) for _ in range(own.choice((0, 1, 2, 3, 3, 3)))] for _ in range(own.choice((1, 1, 2)))
            ]
            pairs = [[own.choice(states), own.choice(states)] for _ in range(own.choice((0, 0, 1, 2)))]
            brackets = [[*pair, *own.choice(([], ["X"], ["nobody"], [""]))] for pair in pairs]
            query = {"words": rows if len(rows) > 1 else rows[0], "brackets": brackets, "domain": domain}
        return {"files": {}, "victim": "", "query": query}


NAME = "hunted"
REGISTERED = f"""\
import hashlib
from rankfold.data import catalog

TEXTS = {{"train": b"a b c\\n", "valid": b"a b\\n", "test": b"c\\n"}}
catalog.DATASETS["{NAME}"] = catalog.Dataset("{NAME}", "", "", tuple(
    catalog.File(name, f"http://127.0.0.1:9/{{name}}.txt", hashlib.sha256(text).hexdigest(), len(text), 1, 1)
    for name, text in TEXTS.items()
))
from rankfold.cli import main


def get(folder, address):
    return main(["data", "get", "{NAME}", "--out", str(folder / "out"), f"--from={{address}}"])
"""
ADDRESSES = ("http://127.0.0.1:9/x", "https://127.0.0.1:9", "file://FOLDER/from", "FOLDER/from", "ftp://127.0.0.1:9/x")
ADDRESSES = (
    *ADDRESSES,
    "http://[::1",
    "http://",
    "http://127.0.0.1:99999/x",
    "file://",
    "http://127.0.0.1:9/\n",
    "://",
)


class Addresses(Command):
    """`data get` from an address or a folder, into a folder that may hold something: nothing else is written."""

    name = "data get"
    imports = REGISTERED
    expression = "get(folder, case['address'].replace('FOLDER', str(folder)))"
    written = ("out",)
    named = False

    def seeds(self) -> list[Files]:
        texts = {
            "from/train.txt": b"a b c\n",
            "from/valid.txt": b"a b\n",
            "from/test.txt": b"c\n",
            "beside/kept": b"mine\n",
        }
        packed_ones = {**texts, "from/train.txt.gz": gzip.compress(b"a b c\n", mtime=0)}
        del packed_ones["from/train.txt"]
        return [texts, packed_ones]

    def options(self, rng: Random) -> dict[str, Any]:
        address = rng.choice((*ADDRESSES, *["FOLDER/from"] * 10))
        if rng.random() < 0.2 and "FOLDER" not in address:
            address = mutate.bytes_of(rng, address.encode()).decode("utf-8", "surrogateescape")[:200]
            if "127.0.0.1" not in address or address.startswith("-"):
                address = "http://127.0.0.1:9/" + address.strip("-")
        return {"address": address}

    def draw(self, rng: np.random.Generator) -> Case:
        case = super().draw(rng)
        own = Random(int(rng.integers(2**63)))
        taken = own.choice(("train.txt", "train.txt.part", "valid.txt.gz", "test.txt.bad", "test.txt.gz.part"))
        place = own.choice(
            (None, None, {"link": "../beside/kept"}, {"link": "../beside/new"}, "a b c\n", "b\n", {"folder": True})
        )
        if place is not None:
            case["files"][f"out/{taken}"] = place
            case.pop("untouched", None)
        if "from" not in case["address"]:
            case.pop("untouched", None)
        return case

    def wrong(self, outcome: Outcome, files: Files, case: Case, scratch: Path) -> str | None:
        if outcome.error is not None:
            return None
        out = scratch.parent / "files" / "out"
        for name, text in (("train", b"a b c\n"), ("valid", b"a b\n"), ("test", b"c\n")):
            plain, packed_one = out / f"{name}.txt", out / f"{name}.txt.gz"
            found = plain.read_bytes() if plain.exists() else gzip.decompress(packed_one.read_bytes())
            if found != text:
                return f"another text: {name}"
        return None


GRAMMAR_KINDS = (GrammarText, GrammarJson, ExplainGrammar, Queries, Addresses)
