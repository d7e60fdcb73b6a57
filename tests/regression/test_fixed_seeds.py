"""The numbers of fixed seeds, so that a refactoring cannot move them unnoticed.

`fixed_seeds.py` makes them; `fixed_seeds.json` holds their checksums, written exactly. Libraries of matrix products may
sum in another order: the tolerances allow that and nothing else. After a deliberate change
`python -m tests.regression.fixed_seeds --write`, and say so in the changelog.
"""

import json

import pytest

from tests.regression.fixed_seeds import DATA, Case, apart, cases, checksum

CASES = list(cases())
EXPECTED = json.loads(DATA.read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_numbers_have_not_moved(case: Case) -> None:
    found = {name: checksum(x) for name, x in case.make().items()}
    expected = EXPECTED[case.name]
    assert list(found) == list(expected)
    moved = {name: apart(found[name], expected[name]) for name in expected}
    assert {name: gap for name, gap in moved.items() if not gap <= case.tolerance} == {}


def test_every_number_is_made() -> None:
    assert set(EXPECTED) == {case.name for case in CASES}
