"""How large broadcasts are cut into blocks that fit the cache."""

from __future__ import annotations

# Largest temporary, in entries: 2**22 float64 is 32 MiB, the last-level cache of a server CPU.
BLOCK = 2**22


def blocks(num_rows: int, num_sources: int, num_targets: int) -> list[tuple[slice, slice]]:
    """Slices of (rows, targets) whose broadcast over the sources has at most BLOCK entries."""
    cells = max(1, BLOCK // max(1, num_sources))
    height = max(1, min(num_rows, cells))
    width = max(1, min(num_targets, cells // height))
    return [
        (slice(i, min(i + height, num_rows)), slice(j, min(j + width, num_targets)))
        for i in range(0, num_rows, height)
        for j in range(0, num_targets, width)
    ]
