"""A table's copy in bfloat16, made by whoever wrote the table, for the first reader who would make one.

Read next: `kernels/linear_softmax/triton.py`, which writes it; `kernels/two_way/triton.py`, which takes it.
"""

from __future__ import annotations

from torch import Tensor


class Rounded:
    """The copy, to be taken once: it is half as large as the table, and one pass needs it."""

    def __init__(self, table: Tensor, half: Tensor) -> None:
        self._half: Tensor | None = half
        self._of = _state(table)

    def take(self, table: Tensor) -> Tensor | None:
        """The copy, turned as `table` is; None: taken already, or the table is another or was changed since."""
        half, self._half = self._half, None
        if half is None or self._of != _state(table):
            return None
        turned = (x for x in (half, half.mT) if x.shape == table.shape and x.stride() == table.stride())
        return next(turned, None)


def _state(table: Tensor) -> tuple[int, int | None]:
    """Where it lies, and how often it was written to, which inference mode does not count."""
    return table.data_ptr(), None if table.is_inference() else table._version
