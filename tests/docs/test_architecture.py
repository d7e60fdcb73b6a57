"""The map of the package (docs/architecture.md) names every folder and every module, and nothing that is not there."""

import re
from pathlib import Path

import rankfold

SOURCE = Path(rankfold.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
ROW = re.compile(r"^\| `([\w/]+)/` \| (.*) \|$", re.MULTILINE)
PATH = re.compile(r"`((?:src|tests|benchmarks|docs|[a-z_]+)/[\w/]+(?:\.py|/))`")


def rows() -> dict[str, set[str]]:
    """By folder below the package, the modules and folders that its row of the map names."""
    return {folder: set(re.findall(r"`(\w+)/?`", text)) for folder, text in ROW.findall(PAGE.read_text())}


def modules(folder: Path) -> set[str]:
    """What a reader sees in a folder: modules, and folders that are packages."""
    files = {path.stem for path in folder.glob("*.py") if path.stem != "__init__"}
    return files | {path.parent.name for path in folder.glob("*/__init__.py")}


def packages() -> set[str]:
    found = {str(path.parent.relative_to(SOURCE)) for path in SOURCE.rglob("__init__.py")}
    return {path for path in found if not path.startswith("kernels/")} - {"."}


def test_every_folder_has_a_row() -> None:
    assert packages() == set(rows())
    assert len(ROW.findall(PAGE.read_text())) == len(rows())  # and no folder two


def test_every_row_names_the_modules_of_its_folder() -> None:
    wrong = {
        folder: sorted(named ^ modules(SOURCE / folder))
        for folder, named in rows().items()
        if named != modules(SOURCE / folder)
    }
    assert not wrong


def test_paths_exist() -> None:
    roots = (SOURCE, PAGE.parents[1])
    missing = [path for path in PATH.findall(PAGE.read_text()) if not any((root / path).exists() for root in roots)]
    assert not missing
