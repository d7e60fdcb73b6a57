"""The page: what is packed comes back, nothing is fetched, no word meets the HTML parser, nobody's file is lost."""

import base64
import hashlib
import re
from pathlib import Path

import numpy as np
import pytest

from rankfold.errors import DataError, DomainError
from rankfold.explore.bundle import (
    MARK,
    Bundle,
    fractions,
    is_page,
    joined,
    pack,
    page,
    read_page,
    smallest,
    unpack,
    write_page,
)

BUNDLE = Bundle(
    {"title": "</script><script>alert(1)</script>", "kind": "chain"},
    {
        "a": np.arange(7, dtype=np.uint16).reshape(7, 1) * 4000,
        "b": np.array([1.5, -2.0, 3e-7], dtype=np.float32),
        "c": np.zeros((0, 3), dtype=np.uint8),
        "d": np.array([[-1, 2], [3, 2**30]], dtype=np.int32),
        "words": joined(["<script>", "\u05e9\u05dc\u05d5\u05dd", "a&b"]),
    },
)


def test_packed_arrays_come_back() -> None:
    found = unpack(pack(BUNDLE))
    assert found.meta == BUNDLE.meta
    for name, array in BUNDLE.arrays.items():
        assert found.arrays[name].dtype == array.dtype
        assert found.arrays[name].shape == array.shape
        assert np.array_equal(found.arrays[name], array)
    assert found.arrays["words"].tobytes().decode().split("\n")[1] == "\u05e9\u05dc\u05d5\u05dd"


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(DomainError, match="float64"):
        pack(Bundle({}, {"a": np.zeros(3)}))


def test_text_of_the_user_stays_out_of_the_markup() -> None:
    text = page(BUNDLE)
    assert "alert(1)" not in text
    assert text.count("<script") == 2  # the data, and the program
    assert text.index(MARK) < 1024


def test_the_page_asks_nobody_and_runs_only_its_own_script() -> None:
    text = page(BUNDLE)
    assert "connect-src 'none'" in text
    assert not re.search(r"""(src|href)\s*=\s*["'](https?:)?//""", text)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    for part in (script, style):
        assert base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() in text
    assert "connect-src 'self'" in page(BUNDLE, token="t")
    assert "innerHTML" not in re.sub(r"^// https://d3js.*\n.*", "", script, flags=re.MULTILINE).replace("\r", "")


def test_vendored_scripts_have_their_licence() -> None:
    folder = Path(__file__).parents[2] / "src" / "rankfold" / "explore" / "static" / "vendor"
    text = (folder / "LICENSE").read_text()
    for file in folder.glob("*.min.js"):
        name, version = re.match(r"// https://d3js.org/(d3-\w+)/ v(\S+)", file.read_text()).groups()  # type: ignore[union-attr]
        assert f"{name} {version}" in text


def test_a_page_is_written_over_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_page(path, page(BUNDLE))
    assert is_page(path)
    write_page(path, page(Bundle({"title": "new"}, {})))
    assert read_page(path).meta == {"title": "new"}
    other = tmp_path / "notes.html"
    other.write_text("<p>mine</p>")
    with pytest.raises(DataError, match="is not a page that rankfold explore wrote"):
        write_page(other, page(BUNDLE))
    assert other.read_text() == "<p>mine</p>"
    with pytest.raises(DataError, match="not a page of rankfold explore"):
        read_page(other)
    with pytest.raises(DataError, match="there is no folder"):
        write_page(tmp_path / "absent" / "page.html", "")


def test_numbers_are_kept_as_finely_as_their_dtype() -> None:
    p = np.linspace(0, 1, 1000)
    assert np.abs(fractions(p, np.uint8) / 255 - p).max() <= 0.5 / 255
    assert np.abs(fractions(p, np.uint16) / 65535 - p).max() <= 0.5 / 65535
    assert [smallest([n]).dtype.name for n in (255, 256, 65535, 65536)] == ["uint8", "uint16", "uint16", "uint32"]
