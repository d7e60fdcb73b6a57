"""The numbers of fixed seeds, so that a refactoring cannot move them unnoticed.

`fixed_seeds.py` makes them; `fixed_seeds.json` holds their checksums, written exactly. Libraries of matrix products may
sum in another order: the tolerances allow that and nothing else. After a deliberate change
`python -m tests.regression.fixed_seeds --write`, and say so in the changelog.
"""

import json

import pytest

from tests.regression.fixed_seeds import DATA, Case, cases, checksum, moved

CASES = list(cases())
EXPECTED = json.loads(DATA.read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_numbers_have_not_moved(case: Case) -> None:
    found = {name: checksum(x) for name, x in case.make().items()}
    expected = EXPECTED[case.name]
    assert list(found) == list(expected)
    assert moved(found, expected, case.tolerance) == {}


def test_every_number_is_made() -> None:
    assert set(EXPECTED) == {case.name for case in CASES}


def test_rounding_of_a_gradient_that_is_zero_is_no_move_and_anything_else_is() -> None:
    def sums(value: float, size: float) -> list[str]:
        return [value.hex(), f"{size:.2e}"]

    expected = {"loss": sums(3.0, 3.0), "grad.w": sums(2.0, 2.0), "grad.zero": sums(1e-9, 1e-9)}
    assert moved(expected | {"grad.zero": sums(-1e-9, 1e-9)}, expected, 1e-5) == {}
    for name, value in (("loss", 3.0001), ("grad.w", 2.0001), ("grad.zero", 1e-6)):
        assert set(moved(expected | {name: sums(value, value)}, expected, 1e-5)) == {name}
