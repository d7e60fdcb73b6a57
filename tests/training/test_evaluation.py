"""Perplexity against sentences taken one at a time, streams against one long sequence."""

import itertools
import math

import pytest
import torch

from rankfold.models import ModelConfig
from rankfold.models.catalog import AnyModel, build_model
from rankfold.models.sequence import HMM
from rankfold.training.config import DataConfig
from rankfold.training.corpus import Corpus
from rankfold.training.evaluation import Evaluation, evaluate, log_check
from tests.training.runs import FAMILIES, corpus_of, fresh_model, tiny, write_corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return corpus_of(tiny(), write_corpus(tmp_path_factory.mktemp("data")))


def stirred(family: str, corpus: Corpus) -> AnyModel:
    """A model in float64 that is far from uniform; with dropout, which an evaluation must not use."""
    dropout = {"state_dropout": 0.4, "feature_dropout": 0.4, "logit_dropout": 0.4}
    model = fresh_model(tiny(family=family, **dropout), corpus).double()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for x in model.parameters():
            x.add_(torch.randn(x.shape, generator=generator, dtype=x.dtype))
    return model


def one_by_one(model: AnyModel, rows: list[list[int]]) -> float:
    with torch.no_grad():
        return sum(float(model.log_likelihood(model.batch(torch.tensor([row])))) for row in rows)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("batching", ["length", "unsorted"])
@pytest.mark.parametrize("eval_tokens", [1, 23, 4096])
def test_sentences_on_their_own(family: str, batching: str, eval_tokens: int, corpus: Corpus) -> None:
    model = stirred(family, corpus)
    config = DataConfig(batching=batching, eval_tokens=eval_tokens)  # type: ignore[arg-type]
    found = evaluate(model, corpus.train, config)
    # float64 sums in another order.
    assert found.log_likelihood == pytest.approx(one_by_one(model, corpus.train.sentences), rel=1e-12, abs=0)
    assert (found.tokens, found.sentences) == (corpus.train.num_tokens, len(corpus.train))
    assert found.perplexity == pytest.approx(math.exp(-found.log_likelihood / 220), rel=1e-12, abs=0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("window", [1, 7, 1000])
def test_one_stream_is_one_long_sequence(family: str, window: int, corpus: Corpus) -> None:
    model = stirred(family, corpus)
    config = DataConfig(batching="streams", num_streams=1, window=window)
    found = evaluate(model, corpus.valid, config)
    text = [word for row in corpus.valid for word in row]
    assert found.log_likelihood == pytest.approx(one_by_one(model, [text]), rel=1e-12, abs=0)
    assert (found.tokens, found.sentences) == (len(text), len(corpus.valid))
    apart = evaluate(model, corpus.valid, DataConfig())
    assert abs(found.log_likelihood - apart.log_likelihood) > 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_streams_are_as_many_long_sequences(family: str, corpus: Corpus) -> None:
    """220 tokens in 7 streams: three of 32 and four of 31, so that the last window of 31 has three rows."""
    model = stirred(family, corpus)
    text = [word for row in corpus.train for word in row]
    ends = [0, 32, 64, 96, 127, 158, 189, 220]
    rows = [text[start:end] for start, end in itertools.pairwise(ends)]
    for window in (5, 31):
        found = evaluate(model, corpus.train, DataConfig(batching="streams", num_streams=7, window=window))
        assert found.log_likelihood == pytest.approx(one_by_one(model, rows), rel=1e-12, abs=0)
        assert found.tokens == 220


def test_more_streams_than_tokens(corpus: Corpus) -> None:
    model = stirred("hmm", corpus)
    found = evaluate(model, [[2, 3, 1]], DataConfig(batching="streams", num_streams=16, window=32))
    assert found.log_likelihood == pytest.approx(one_by_one(model, [[2], [3], [1]]), rel=1e-12, abs=0)
    assert (found.tokens, found.sentences) == (3, 1)


def test_parts_and_options_are_passed_on(corpus: Corpus) -> None:
    model = stirred("rank", corpus)
    with torch.no_grad():
        parts = model.parts()
    found = [evaluate(model, corpus.valid, DataConfig(), parts=parts)]
    found += [evaluate(model, corpus.valid, DataConfig(), plan=plan) for plan in ("rank", "state")]
    assert found[1].log_likelihood == pytest.approx(found[0].log_likelihood, rel=1e-12, abs=0)
    assert found[2].log_likelihood == pytest.approx(found[0].log_likelihood, rel=1e-12, abs=0)


def deterministic() -> HMM:
    """Two states in turn, each with a word of its own: 0 1 0 1 ... is certain, all else impossible."""
    one = torch.eye(2, dtype=torch.float64)
    return HMM.from_tables(one[0], one.flip(0), one)


@pytest.mark.parametrize("batching", ["length", "streams"])
def test_an_impossible_sentence_is_infinite(batching: str) -> None:
    config = DataConfig(batching=batching, num_streams=1, window=3)  # type: ignore[arg-type]
    assert evaluate(deterministic(), [[0, 1], [0, 1, 0]], config) == Evaluation(0.0, 5, 2)
    found = evaluate(deterministic(), [[0, 1], [0, 0], [0, 1]], config)
    assert found == Evaluation(-math.inf, 6, 3)
    assert found.perplexity == math.inf


def test_perplexities_at_the_ends() -> None:
    assert Evaluation(0.0, 7, 1).perplexity == 1.0
    assert Evaluation(-math.log(8), 3, 1).perplexity == pytest.approx(2.0, rel=1e-15, abs=0)
    assert Evaluation(-1e6, 10, 1).perplexity == math.inf  # beyond a float
    assert Evaluation(math.nan, 10, 1).perplexity == math.inf


@pytest.mark.parametrize("family", FAMILIES)
def test_the_check_in_logarithms(family: str, corpus: Corpus) -> None:
    model = stirred(family, corpus)
    worst, count = log_check(model, corpus.valid.sentences)
    assert worst < 1e-12
    assert count == 7
    # The weights are float32, the sums of a step too: about 2**-24 each, and 8 of them.
    assert log_check(model.float(), corpus.valid.sentences)[0] < 1e-5


def test_probabilities_that_float32_has_no_number_for_are_counted() -> None:
    """Two states that words tell apart for sure; to change state costs 128 nats, which float32 takes for never."""
    model = build_model(ModelConfig(family="hmm", num_states=2, dim=1, num_layers=0), 2)
    assert isinstance(model, HMM)
    with torch.no_grad():
        for x, size in ((model.transition.source, 8.0), (model.transition.target, 8.0)):
            x.copy_(torch.tensor([[size], [-size]]))
        for parameter in model.emission.parameters():
            parameter.copy_(torch.tensor([[14.0], [-14.0]]))
        for parameter in model.transition.start.parameters():
            parameter.zero_()
    # By hand: three changes, and half of the first state; without changes two words that their state never says.
    truth = math.log(0.5) - 3 * 128
    batch = model.batch(torch.tensor([[0, 1, 0, 1]]))
    assert model.log_z(model.potentials(batch, parts=model.own_parts())).item() == pytest.approx(-2 * 392, rel=1e-3)
    assert evaluate(model, [[0, 1, 0, 1]] * 3, DataConfig()).log_likelihood == pytest.approx(3 * truth, rel=1e-9)
    assert log_check(model, [[0, 1, 0, 1]])[0] < 1e-12
    assert log_check(model.double(), [[0, 1, 0, 1]])[0] < 1e-12


def test_the_check_takes_a_few_sentences_and_cuts_them(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    model = stirred("hmm", corpus)
    lengths: list[int] = []
    batch = type(model).batch

    def noted(self: AnyModel, words: torch.Tensor) -> object:
        lengths.append(words.shape[1])
        return batch(self, words)

    monkeypatch.setattr(type(model), "batch", noted)
    rows = [[2] * 5, [3] * 4, [4] * 9, [5] * 2]
    assert log_check(model, rows, num_sentences=3)[1] == 3
    assert log_check(model, rows, num_tokens=11)[1] == 3
    assert log_check(model, rows, num_tokens=9)[1] == 2
    assert lengths == [5, 4, 9, 5, 4, 2, 5, 4]


def test_the_check_finds_a_difference(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    model = stirred("hmm", corpus)
    log_z = type(model).log_z

    def off(self: AnyModel, p: object, arithmetic: str = "scaled") -> torch.Tensor:
        return log_z(self, p, arithmetic) + (0.25 if arithmetic == "log" else 0.0)

    monkeypatch.setattr(type(model), "log_z", off)
    assert log_check(model, [[2, 3, 4, 1], [2, 1]])[0] == pytest.approx(0.125, rel=1e-9, abs=0)


def test_impossible_in_both_arithmetics_is_no_difference() -> None:
    assert log_check(deterministic(), [[0, 0, 1]]) == (0.0, 1)


def test_an_evaluation_leaves_the_model_alone(corpus: Corpus) -> None:
    model = stirred("lhmm", corpus)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    random = torch.get_rng_state()
    evaluate(model, corpus.valid, DataConfig())
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert all(x.grad is None for x in model.parameters())
    assert torch.equal(torch.get_rng_state(), random)
