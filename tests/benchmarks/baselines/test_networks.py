"""Networks of words: distributions, no look at what comes, windows equal to the whole, a text that is learnt."""

import itertools
import math
from collections.abc import Callable, Sequence

import pytest
import torch

from benchmarks.baselines.networks import FeedForward, Network, Recurrent, perplexity, windows

CPU = torch.device("cpu")
KINDS: list[Callable[[int, int], Network]] = [FeedForward, Recurrent]


def build(kind: Callable[[int, int], Network], num_words: int = 3) -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = kind(num_words, 5)
        for parameter in network.parameters():
            torch.nn.init.normal_(parameter)
    return network


def log_likelihood(network: Network, row: Sequence[int]) -> float:
    """Word by word, from the start, with the whole context read again for each."""
    total = 0.0
    for t, word in enumerate(row):
        logits, _ = network(torch.tensor([[network.words.start, *row[:t]]]))
        total += float(logits[0, -1].detach().double().log_softmax(-1)[word])
    return total


@pytest.mark.parametrize("kind", KINDS)
def test_strings_sum_to_one(kind: Callable[[int, int], Network]) -> None:
    """Of word 0 as the end: all strings that end within four words, and those of four words that do not."""
    network = build(kind).eval()
    total = 0.0
    for length in range(1, 5):
        for row in itertools.product(range(3), repeat=length):
            if 0 not in row[:-1] and (row[-1] == 0 or length == 4):
                total += math.exp(log_likelihood(network, row))
    assert total == pytest.approx(1, abs=1e-6)  # float32


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("carried", [False, True])
def test_perplexity_is_that_of_word_by_word(kind: Callable[[int, int], Network], carried: bool) -> None:
    rows = [[1, 2, 0], [0], [2, 2, 1, 1, 2, 1, 0], [1, 0]]
    network = build(kind)
    texts = [list(itertools.chain(*rows))] if carried else rows
    expected = math.exp(-sum(log_likelihood(network.eval(), row) for row in texts) / 13)
    assert perplexity(network, rows, carried=carried, device=CPU) == pytest.approx(expected, rel=1e-5)  # float32


@pytest.mark.parametrize("kind", KINDS)
def test_windows_carry_everything(kind: Callable[[int, int], Network], monkeypatch: pytest.MonkeyPatch) -> None:
    """A text in windows of two words has the perplexity of the text in one."""
    import benchmarks.baselines.networks as module

    rows, network = [[1, 2, 0], [2, 2, 1, 1, 0], [1, 0]], build(kind)
    whole = perplexity(network, rows, carried=True, device=CPU)
    original = windows
    monkeypatch.setattr(module, "windows", lambda rows, tokens, **given: original(rows, 2, **given))
    assert perplexity(network, rows, carried=True, device=CPU) == pytest.approx(whole, rel=1e-5)


def test_feed_forward_sees_four_words() -> None:
    network = build(FeedForward).eval()
    logits = [network(torch.tensor([[first, 1, 2, 0, 1, 2]]))[0][0] for first in (1, 2)]
    assert not torch.allclose(logits[0][3], logits[1][3])
    assert torch.equal(logits[0][4:], logits[1][4:])
