"""The pages of docs/reference have an entry for every public name; the site is built from them by `make docs`."""

import pkgutil
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import rankfold

DOCS = Path(__file__).parents[2] / "docs"
ENTRIES = [
    name
    for page in sorted((DOCS / "reference").glob("*.md"))
    for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
]


def packages() -> list[ModuleType]:
    """The package, and every package below it that lists its public names."""
    below = [found.name for found in pkgutil.walk_packages(rankfold.__path__, "rankfold.") if found.ispkg]
    return [rankfold, *(package for name in below if hasattr(package := import_module(name), "__all__"))]


def resolve(path: str) -> object:
    """The object that a dotted path names."""
    owner, _, name = path.rpartition(".")
    found = import_module(owner)
    return getattr(found, name)


def missing() -> list[str]:
    """Public names that no entry documents, here or under the name of another package."""
    documented = [resolve(entry) for entry in ENTRIES]
    names = [(package, name) for package in packages() for name in package.__all__]
    return [
        f"{package.__name__}.{name}"
        for package, name in names
        if not any(found is getattr(package, name) for found in documented)
        and not (isinstance(room := getattr(package, name), ModuleType) and opened(room))
    ]


def opened(room: ModuleType) -> bool:
    """Whether some entry documents a name of the module; its own `__all__`, if any, is asked for in full."""
    return any(entry.startswith(room.__name__) for entry in ENTRIES)


def test_every_public_name_has_an_entry() -> None:
    assert missing() == [], "add a line '::: NAME' to a page of docs/reference"


def test_an_entry_that_is_missing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ENTRIES", [entry for entry in ENTRIES if entry != "rankfold.log_z"])
    assert missing() == ["rankfold.log_z", "rankfold.recursions.log_z"]


def test_no_name_has_two_entries() -> None:
    assert sorted(ENTRIES) == sorted(set(ENTRIES))


def test_every_page_is_in_the_navigation() -> None:
    text = (DOCS.parent / "mkdocs.yml").read_text()
    named = set(re.findall(r"[\w/-]+\.md", text[text.index("\nnav:") :])) - {"contributing.md", "changelog.md"}
    assert named == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}, "see nav in mkdocs.yml"
