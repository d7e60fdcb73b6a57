"""The chart from right to left, against sums by hand and against all sentences of a finite grammar."""

import pytest

from tests.oracles import prefix as oracle

EMISSION = [[0.75, 0.25], [0.0, 1.0]]
# The first symbol has the second for one of its children, or two words; the second has two words.
FINITE = {
    "ss": [[[0.0, 0.0], [0.0, 0.125]], [[0.0, 0.0], [0.0, 0.0]]],
    "sl": [[[0.0, 0.0], [0.25, 0.125]], [[0.0, 0.0], [0.0, 0.0]]],
    "ls": [[[0.0, 0.125], [0.0, 0.125]], [[0.0, 0.0], [0.0, 0.0]]],
    "ll": [[[0.125, 0.0], [0.125, 0.0]], [[0.5, 0.25], [0.125, 0.125]]],
}
ROOT, ROOT_LEAF = [0.5, 0.25], [0.125, 0.125]


def growing(share: float) -> dict[str, list[list[list[float]]]]:
    """One symbol: two of itself with this probability, else two words."""
    return {"ss": [[[share]]], "sl": [[[0.0]]], "ls": [[[0.0]]], "ll": [[[1 - share]]]}


@pytest.mark.parametrize(("share", "wanted"), [(0.0, 1.0), (0.25, 1.0), (0.75, 1 / 3)])
def test_mass_by_hand(share: float, wanted: float) -> None:
    assert oracle.mass(growing(share)) == pytest.approx([wanted, 1.0], rel=1e-12)


def test_lengths_by_hand() -> None:
    """With one word a prefix of k says that a sentence has at least k words: an even number, two a leaf."""
    given = {"emission": [[1.0]], "rules": growing(0.25), "root": [1.0], "root_leaf": [0.0]}
    two, four = 0.75, 0.25 * 0.75**2
    wanted = [1.0, 1.0, 1.0, 1.0 - two, 1.0 - two, 1.0 - two - four]
    found = [oracle.prefix([0] * k, **given) for k in range(6)]
    assert found == pytest.approx(wanted, rel=1e-12)


def test_all_sentences() -> None:
    every = oracle.sentences(EMISSION, FINITE, ROOT, ROOT_LEAF)
    assert sum(every.values()) == pytest.approx(1.0, rel=1e-14)
    assert every[0,] == 0.125 * 0.75
    assert max(map(len, every)) == 4
    for words in ([], [1], [0, 1], [1, 1, 0], [1, 0, 1, 1]):
        wanted = sum(share for sentence, share in every.items() if sentence[: len(words)] == tuple(words))
        assert wanted > 0
        assert oracle.prefix(words, EMISSION, FINITE, ROOT, ROOT_LEAF) == pytest.approx(wanted, rel=1e-12)
