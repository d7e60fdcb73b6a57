"""Generated sentences against the exact probabilities of what they may be."""

import itertools
import math
from collections import Counter

import pytest
import torch

from rankfold import DomainError
from rankfold.data.batch import Batch
from rankfold.decoding.generate import WordChoice, generate_words
from rankfold.models import HMM
from rankfold.models.catalog import AnyModel
from tests.models.cases import BY_NAME, CASES, Case, seeded

INF = float("inf")
NEVER = -1  # an end symbol that no word is
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def exact(model: AnyModel, prefix: list[int], length: int) -> dict[tuple[int, ...], float]:
    """The probability of every continuation of a length."""
    strings = list(itertools.product(range(3), repeat=length))
    rows = torch.tensor([[*prefix, *string] for string in strings])
    log_prob = model.log_likelihood(Batch(rows, torch.full((len(rows),), rows.shape[1]))).detach()
    weights = torch.softmax(log_prob, 0).tolist()
    return dict(zip(strings, weights, strict=True))


def expect_frequencies(drawn: list[list[int]], probabilities: dict[tuple[int, ...], float]) -> None:
    """Pearson's statistic below its mean and six standard deviations."""
    count = Counter(map(tuple, drawn))
    assert set(count) <= {string for string, weight in probabilities.items() if weight > 0}
    possible = {string: weight * len(drawn) for string, weight in probabilities.items() if weight > 0}
    statistic = sum((count[string] - mean) ** 2 / mean for string, mean in possible.items())
    degrees = len(possible) - 1
    assert statistic < degrees + 6 * math.sqrt(2 * degrees) + 1e-9


@every_case
def test_frequencies(case: Case) -> None:
    model = case.build()
    drawn = model.generate_ids(3000, end=NEVER, max_length=2, generator=seeded())
    expect_frequencies(drawn, exact(model, [], 2))


@every_case
def test_a_prefix_is_gone_on_from(case: Case) -> None:
    model = case.build()
    drawn = model.generate_ids(3000, prefix=[0, 1, 1], end=NEVER, max_length=2, generator=seeded(1))
    expect_frequencies(drawn, exact(model, [0, 1, 1], 2))


@every_case
def test_a_seed_repeats(case: Case) -> None:
    model = case.build()
    one, two, other = (model.generate_ids(20, max_length=9, generator=seeded(seed)) for seed in (0, 0, 1))
    assert one == two != other


def test_the_end_symbol_stops() -> None:
    model = BY_NAME["lhmm-neural-3-2"].build()
    drawn = model.generate_ids(2000, end=1, max_length=3, generator=seeded())
    assert all(1 not in sentence and len(sentence) <= 3 for sentence in drawn)
    # The probability of an end at once, after one word, after two, or of none in three.
    probabilities = exact(model, [], 3)
    lengths: dict[tuple[int, ...], float] = {(n,): 0.0 for n in range(4)}
    for string, weight in probabilities.items():
        lengths[(string.index(1) if 1 in string else 3,)] += weight
    expect_frequencies([[len(sentence)] for sentence in drawn], lengths)


def test_the_default_end_is_that_of_a_vocabulary() -> None:
    emission = torch.tensor([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]], dtype=torch.float64)
    transition = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    model = HMM.from_tables(torch.tensor([1.0, 0.0], dtype=torch.float64), transition, emission)
    drawn = model.generate_ids(50, generator=seeded())
    assert {tuple(sentence) for sentence in drawn} == {(0,), (2,)}
    assert model.generate_ids(3, prefix=[2], generator=seeded()) == [[], [], []]
    longer = model.generate_ids(3, end=NEVER, max_length=5, generator=seeded())
    assert [len(sentence) for sentence in longer] == [5, 5, 5]
    assert all(sentence[1::2] == [1, 1] for sentence in longer)


def test_max_length() -> None:
    model = BY_NAME["hmm-free-3"].build()
    for length in (1, 2, 17):
        assert [len(x) for x in model.generate_ids(4, end=NEVER, max_length=length, generator=seeded())] == [length] * 4


def test_one_sentence_by_default() -> None:
    assert len(BY_NAME["rank-free-3-2"].build().generate_ids(generator=seeded())) == 1


@pytest.mark.parametrize("name", ["hmm-neural-3", "block-free-6-2", "rank-neural-3-2"])
def test_the_door(name: str) -> None:
    model = BY_NAME[name].build()
    with pytest.raises(DomainError, match="num is 0 and max_length 5"):
        model.generate_ids(0, max_length=5)
    with pytest.raises(DomainError, match="max_length 0"):
        model.generate_ids(1, max_length=0)
    with pytest.raises(DomainError, match="id 3, but this model knows 0 to 2"):
        model.generate_ids(prefix=[0, 3])


def test_weights_of_zero_and_of_any_range() -> None:
    """A state of weight zero is never drawn; the others by their difference, however small they are."""
    log_next = torch.tensor([[-2000.0, -INF, -2000.0 + math.log(3)]], dtype=torch.float64).expand(4000, -1)
    says = torch.full((3, 3), -INF, dtype=torch.float64).fill_diagonal_(0.0)
    drawn = generate_words(
        log_next, lambda index: log_next[index], lambda index: says[index], end=NEVER, max_length=1, generator=seeded()
    )
    expect_frequencies(drawn, {(0,): 0.25, (1,): 0.0, (2,): 0.75})


def test_rows_are_asked_for_the_living_only() -> None:
    """Sentence 0 ends at once: from then on it costs nothing."""
    asked: list[int] = []
    log_next = torch.tensor([[0.0, -INF], [-INF, 0.0], [-INF, 0.0]])
    stay = torch.tensor([[0.0, -INF], [-INF, 0.0]])

    def rows(index: torch.Tensor) -> torch.Tensor:
        asked.append(len(index))
        return stay[index]

    out = generate_words(log_next, rows, lambda index: stay[index], end=0, max_length=3, generator=seeded())
    assert out == [[], [1, 1, 1], [1, 1, 1]]
    assert set(asked) == {2}


def changed(weights: list[float], choice: WordChoice) -> list[float]:
    """The distribution of a choice, in plain Python."""
    kept = [0.0 if i in choice.excluded else weight for i, weight in enumerate(weights)]
    likeliest = sorted(range(len(kept)), key=lambda i: (-kept[i], i))[: choice.top_k]
    powers = [weight ** (1 / choice.temperature) if i in likeliest else 0.0 for i, weight in enumerate(kept)]
    return [power / sum(powers) for power in powers]


CHOICES = [WordChoice(0.5), WordChoice(3.0), WordChoice(top_k=2), WordChoice(excluded=(1,)), WordChoice(0.7, 1, (0,))]


@pytest.mark.parametrize(
    ("case", "choice"),
    [*((case, WordChoice(0.5, excluded=(1,))) for case in CASES), *((BY_NAME["hmm-free-3"], x) for x in CHOICES)],
    ids=str,
)
def test_every_word_is_drawn_from_its_own_changed_distribution(case: Case, choice: WordChoice) -> None:
    model = case.build()

    def step(prefix: list[int]) -> list[float]:
        return changed([exact(model, prefix, 1)[(word,)] for word in range(3)], choice)

    first = step([0])
    truth = {(a, b): first[a] * second for a in range(3) for b, second in enumerate(step([0, a]))}
    drawn = model.generate_ids(1000, prefix=[0], end=NEVER, max_length=2, choice=choice, generator=seeded())
    count = Counter(map(tuple, drawn))
    assert set(count) <= {string for string, share in truth.items() if share > 0}
    for string, share in truth.items():  # five standard deviations, and two more where next to nothing is expected
        assert abs(count[string] - 1000 * share) <= 5 * math.sqrt(1000 * share * (1 - share)) + 2


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_a_choice_is_the_formula(choice: WordChoice) -> None:
    weights = torch.tensor([[0.5, 0.2, 0.3], [0.25, 0.25, 0.5], [1.0, 0.0, 0.0]], dtype=torch.float64)
    rows = weights[:2] if 0 in choice.excluded else weights
    found = choice(rows.log()).exp()
    torch.testing.assert_close(found.tolist(), [changed(row, choice) for row in rows.tolist()], rtol=1e-12, atol=0)


def test_a_choice_leaves_its_input_alone_and_names_what_is_left_out() -> None:
    log_words = torch.tensor([[0.0, -INF, -INF]])
    with pytest.raises(DomainError, match="none is left to draw"):
        WordChoice(excluded=(0,))(log_words)
    assert log_words.tolist() == [[0.0, -INF, -INF]]


@pytest.mark.parametrize(
    ("bad", "words"),
    [({"temperature": 0.0}, "top_k = 1"), ({"temperature": INF}, "finite"), ({"temperature": -1.0}, "above 0"),
     ({"temperature": float("nan")}, "above 0"), ({"top_k": 0}, "at least 1")],
)  # fmt: skip
def test_choices_that_are_none(bad: dict[str, float], words: str) -> None:
    with pytest.raises(DomainError, match=words):
        WordChoice(**bad)


def test_ends_are_words_that_a_choice_weighs_too() -> None:
    model = BY_NAME["hmm-free-3"].build()
    drawn = model.generate_ids(50, end=1, max_length=4, choice=WordChoice(excluded=(1,)), generator=seeded())
    assert all(len(row) == 4 and 1 not in row for row in drawn)
    sharp = model.generate_ids(20, end=1, max_length=9, choice=WordChoice(top_k=1), generator=seeded())
    assert len(set(map(tuple, sharp))) == 1
    assert all(1 not in row for row in sharp)
