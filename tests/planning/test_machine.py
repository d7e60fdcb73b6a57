"""What a machine and its container leave of memory, as Linux writes it down."""

import os
from pathlib import Path

import pytest

from rankfold.planning.measure import available_bytes

NOTHING = Path("/nothing/of/the/kind")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A machine that has 8,000 KiB left of 16,000."""
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:       16000 kB\nMemFree:        100 kB\nMemAvailable:   8000 kB\n")
    return file


def group_of(folder: Path, limit: str, used: int, stat: str | None) -> Path:
    """A container's folder."""
    for name, text in (("max", limit), ("current", str(used)), ("stat", stat)):
        if text is not None:
            (folder / f"memory.{name}").write_text(f"{text}\n")
    return folder


def test_a_machine_says_what_it_could_give(table: Path) -> None:
    assert available_bytes(table, NOTHING) == 8000 * 1024


@pytest.mark.parametrize(
    ("limit", "used", "stat", "left"),
    [
        ("5000", 3000, "anon 10\ninactive_file 400", 5000 - 3000 + 400),  # a file not used since goes when asked
        ("5000", 3000, "anon 10", 2000),
        ("5000", 3000, None, 2000),
        ("5000", 3000, "no numbers here", 2000),
        ("5000", 6000, "inactive_file 0", 0),
        ("99999999999", 0, None, 8000 * 1024),  # more than its machine has
        ("max", 3000, "inactive_file 400", 8000 * 1024),
    ],
)
def test_a_container_may_have_less(
    limit: str, used: int, stat: str | None, left: int, table: Path, tmp_path: Path
) -> None:
    assert available_bytes(table, group_of(tmp_path, limit, used, stat)) == left


def test_a_machine_that_does_not_say_has_all_of_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 10}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    assert available_bytes(NOTHING, NOTHING) == 40960
    old = tmp_path / "meminfo"
    old.write_text("MemTotal: 16000 kB\n")
    assert available_bytes(old, NOTHING) == 40960


def test_nobody_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sysconf")
    assert available_bytes(NOTHING, NOTHING) is None
