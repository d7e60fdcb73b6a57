"""Readers of text: sentences, splits, vocabularies, clusters, treebanks, docstrings, lines of commands."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from random import Random
from typing import Any

from tests.hunt import mutate
from tests.hunt.case_files import Files
from tests.hunt.kind import Case
from tests.hunt.readers import Outcome, Reader, json_bytes

SENTENCES = (
    b"the cat sat on the mat\nthe dog sat\n\na dog and a cat\n",
    "ein Haus \u2014 zwei H\u00e4user\r\n\u65e5\u672c \u8a9e\n  N of <unk> !\n".encode(),
    b"a\nb\nc d e f g h i j k l m n o p q r s t u v w x y z\n1 2 3 -4.5 1e9\n" * 3,
)
VOCABULARY = ["<unk>", "<eos>", "the", "cat", "dog", "sat", "h\u00e4user"]
TREES = (
    b"(S (NP (DT the) (NN cat)) (VP (VBD sat) (PP (IN on) (NP (DT the) (NN mat)))))\n(S (NP it) (VP works))\n",
    b"( (S (NP-SBJ (NNP Ms.) (NNP Haag))\n     (VP (VBZ plays) (NP (NNP Elianti)))\n (. .)) )\n((X (-LRB- -LRB-)))\n",
    "(S (A \u00e9) (B (C \u65e5) (D \u672c)))\n".encode(),
)


class Text(Reader):
    """Sentences of a plain file, held to a reader of three lines."""

    name = "read text"
    imports = "from rankfold.data.text import read_sentences"
    expression = "read_sentences(folder / 'train.txt').sentences"
    file = "train.txt"

    def seeds(self) -> list[Files]:
        return [{self.file: text} for text in SENTENCES]

    def wrong(self, outcome: Outcome, files: Files, case: Case, scratch: Path) -> str | None:
        if self.file not in files:
            return None if outcome.error else "a value without a file"
        expected = sentences(files[self.file])
        return agreed(outcome, expected)


class GzipText(Text):
    """Sentences of a gzip file."""

    name = "read gzip text"
    expression = "read_sentences(folder / 'train.txt.gz').sentences"
    file = "train.txt.gz"
    bombs = ("gz",)

    def seeds(self) -> list[Files]:
        return [{self.file: gzip.compress(text, mtime=0)} for text in SENTENCES]

    def damaged(self, rng: Random, name: str, data: bytes, others: list[bytes]) -> bytes:
        if rng.random() < 0.5:
            return mutate.bytes_of(rng, data, others)
        inner = gzip.decompress(data)
        return gzip.compress(mutate.bytes_of(rng, inner), mtime=0) + rng.choice((b"", b"", b"", data, b"\0", b"x"))

    def wrong(self, outcome: Outcome, files: Files, case: Case, scratch: Path) -> str | None:
        if self.file not in files:
            return None if outcome.error else "a value without a file"
        try:
            data = gzip.decompress(files[self.file])
        except Exception:
            return None if outcome.error else "damaged gzip data was read"
        return agreed(outcome, sentences(data))


class Splits(Reader):
    """A folder of splits."""

    name = "read splits"
    imports = "from rankfold.data.text import read_splits"
    expression = "{name: split.sentences for name, split in read_splits(folder).items()}"

    def seeds(self) -> list[Files]:
        first, second, third = SENTENCES
        return [
            {"train.txt": first, "valid.txt": second, "test.txt.gz": gzip.compress(third, mtime=0)},
            {"a.train.tokens": third, "a.valid.tokens": first, "a.test.tokens": second, "README": b"?"},
        ]

    def victims(self, files: Files) -> list[str]:
        return list(files)


def sentences(data: bytes) -> list[list[str]] | None:
    """The sentences of a text; None where it breaks a rule."""
    lines = data.split(b"\n")
    inside = [line.rstrip(b"\r") for line in lines]
    if data.startswith((b"\xef\xbb\xbf", b"\x1f\x8b")) or any(
        b"\0" in x or b"\r" in x or len(x) > 10**6 for x in inside
    ):
        return None
    try:
        words = [line.decode().split() for line in lines]
    except UnicodeDecodeError:
        return None
    if any("<eos>" in line for line in words):
        return None
    return [line for line in words if line] or None


def agreed(outcome: Outcome, expected: Any) -> str | None:
    """Whether exactly what is valid was read."""
    if outcome.error is not None:
        return None if expected is None else f"a valid file was refused: {outcome.error}"
    return None if outcome.value == expected else "another value: " + ("expected a refusal" if expected is None else "")


class VocabularyFile(Reader):
    """vocab.json."""

    name = "read vocab.json"
    imports = "from rankfold.data.vocab import Vocabulary"
    expression = "Vocabulary.load(folder / 'vocab.json')"

    def seeds(self) -> list[Files]:
        from rankfold.data.vocab import Vocabulary

        texts = [line.decode().split("\n") for line in SENTENCES]
        made = [
            Vocabulary.build([line.split() for line in text if line.split() and "<eos>" not in line], **options)
            for text, options in zip(texts, ({}, {"min_count": 2}, {"max_size": 9}), strict=True)
        ]
        return [{"vocab.json": saved(vocabulary, "vocab.json")} for vocabulary in made]

    def damaged(self, rng: Random, name: str, data: bytes, others: list[bytes]) -> bytes:
        return json_bytes(rng, data, others)

    def wrong(self, outcome: Outcome, files: Files, case: Case, scratch: Path) -> str | None:
        if outcome.error is not None:
            return None
        vocabulary = outcome.value
        if list(vocabulary.words) != json.loads(files["vocab.json"])["words"]:
            return "other words"
        vocabulary.save(scratch / "vocab.json")
        again = type(vocabulary).load(scratch / "vocab.json")
        same = again.words == vocabulary.words and again.fingerprint() == vocabulary.fingerprint()
        ids = [vocabulary.id_of(word) for word in vocabulary.words if not vocabulary.spelling.numbers]
        if ids and not vocabulary.spelling.lower and ids != list(range(len(ids))):
            return "words share an id"
        return None if same else "another vocabulary when read again"


def saved(thing: Any, name: str) -> bytes:
    """The bytes that `save` writes."""
    import tempfile

    with tempfile.TemporaryDirectory() as at:
        thing.save(Path(at) / name)
        return (Path(at) / name).read_bytes()


class ClusterFile(Reader):
    """Word clusters, in both formats, plain and packed."""

    name = "read clusters"
    imports = "from rankfold.data.clusters import read_clusters"
    expression = "read_clusters(folder / case['file'], case['words'], missing=case['missing'])"

    def seeds(self) -> list[Files]:
        numbered = "".join(f"{word}\t{i % 3}\n" for i, word in enumerate(VOCABULARY)).encode()
        paths = "".join(f"{i % 4:02b}\t{word}\t{i + 1}\n" for i, word in enumerate(VOCABULARY)).encode()
        return [{"clusters.txt": numbered}, {"clusters.txt": paths}, {"clusters.txt": numbered.replace(b"2", b"1")}]

    def options(self, rng: Random) -> dict[str, Any]:
        return {"file": "clusters.txt", "words": VOCABULARY, "missing": rng.choice(("error", "last"))}

    def wrong(self, outcome: Outcome, files: Files, case: Case, scratch: Path) -> str | None:
        if outcome.error is not None:
            return None
        found = outcome.value.assignment.tolist()
        if len(found) != len(VOCABULARY) or set(found) != set(range(outcome.value.num_clusters)):
            return f"clusters without words: {found}"
        lines = [line.split("\t") for line in files["clusters.txt"].decode().split("\n") if line]
        at = 1 if len(lines[0]) == 3 else 0
        labels = {line[at]: line[1 - at] for line in lines}
        named = {word: label if at else str(int(label)) for word, label in labels.items()}  # 00 is 0
        pairs = {(named[word], found[i]) for i, word in enumerate(VOCABULARY) if word in named}
        one_to_one = len({label for label, _ in pairs}) == len(pairs) == len({number for _, number in pairs})
        return None if one_to_one else f"other clusters: {sorted(pairs)}"


class GzipClusters(ClusterFile):
    """Word clusters in gzip."""

    name = "read gzip clusters"
    bombs = ("gz",)

    def seeds(self) -> list[Files]:
        return [{"clusters.gz": gzip.compress(files["clusters.txt"], mtime=0)} for files in super().seeds()]

    def options(self, rng: Random) -> dict[str, Any]:
        return {**super().options(rng), "file": "clusters.gz"}

    def damaged(self, rng: Random, name: str, data: bytes, others: list[bytes]) -> bytes:
        return GzipText.damaged(self, rng, name, data, others)  # type: ignore[arg-type]

    def wrong(self, outcome: Outcome, files: Files, case: Case, scratch: Path) -> str | None:
        if outcome.error is not None:
            return None
        return super().wrong(outcome, {"clusters.txt": gzip.decompress(files["clusters.gz"])}, case, scratch)


class Treebank(Reader):
    """Bracketed trees."""

    name = "read trees"
    imports = "from rankfold.data.brackets import read_trees"
    expression = "read_trees(folder / case['file']).trees"
    file = "a.trees"

    def seeds(self) -> list[Files]:
        return [{self.file: text} for text in TREES]

    def options(self, rng: Random) -> dict[str, Any]:
        return {"file": self.file}

    def text(self, files: Files) -> str:
        return files[self.file].decode()

    def wrong(self, outcome: Outcome, files: Files, case: Case, scratch: Path) -> str | None:
        if outcome.error is not None:
            return None
        from rankfold.data.brackets import parse_trees

        tokens = re.findall(r"[()]|[^\s()]+", self.text(files))
        words = [x for before, x in zip(["(", *tokens], tokens, strict=False) if x not in "()" and before != "("]
        if [word for tree in outcome.value for word in tree.words] != words:
            return "other words"
        again = parse_trees("\n".join(map(str, outcome.value)))
        return None if again == outcome.value else "other trees when read again"


class GzipTreebank(Treebank):
    """Bracketed trees in gzip."""

    name = "read gzip trees"
    file = "a.mrg.gz"
    bombs = ("gz",)

    def seeds(self) -> list[Files]:
        return [{self.file: gzip.compress(text, mtime=0)} for text in TREES]

    def damaged(self, rng: Random, name: str, data: bytes, others: list[bytes]) -> bytes:
        return GzipText.damaged(self, rng, name, data, others)  # type: ignore[arg-type]

    def text(self, files: Files) -> str:
        return gzip.decompress(files[self.file]).decode()


class Docstrings(Reader):
    """A corpus made of Python files; one that is not Python is passed over."""

    name = "read docstrings"
    imports = "from rankfold.data.demo import read_docstrings"
    expression = "read_docstrings(folder)"

    def seeds(self) -> list[Files]:
        text = (
            b'"""The list is sorted in the order of the names of its files."""\n\n\n'
            b'def f(x):\n    """It returns the sum of all the numbers."""\n    return [x, (1, {2: "\\d"})]\n'
        )
        return [{"a.py": text, "b.py": text.replace(b"sum", b"product")}]

    def wrong(self, outcome: Outcome, files: Files, case: Case, scratch: Path) -> str | None:
        if outcome.error is not None:
            return f"a folder with a Python file was refused: {outcome.error}"
        return None if any("product" in words for words in outcome.value.sentences) else "a good file was passed over"


TEXT_KINDS = (Text, GzipText, Splits, VocabularyFile, ClusterFile, GzipClusters, Treebank, GzipTreebank, Docstrings)
