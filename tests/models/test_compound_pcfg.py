"""The compound PCFG: a bound that is one, draws that belong to a sentence, and exact trees given the vector."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rankfold import UnsupportedError
from rankfold.data.batch import Batch
from rankfold.models import CompoundPCFG, GrammarConfig, build_model, load_model
from rankfold.params.rules.softmax import to_dense
from rankfold.recursions import tree
from tests.models.grammar_cases import all_sentences, some_sentences
from tests.params.build import EXACT, seeded, stirred


def compound(latent: int = 2, *, single: bool = False, seed: int = 0) -> CompoundPCFG:
    sizes = {"num_nonterminals": 2, "num_preterminals": 3, "dim": 3, "num_layers": 1, "encoder_dim": 4}
    config = GrammarConfig(family="cpcfg", latent_dim=latent, single_words=single, **sizes)
    model = build_model(config, 3, seed=seed)
    assert isinstance(model, CompoundPCFG)
    return stirred(model, seed=seed + 1, scale=0.4)


def given(model: CompoundPCFG, batch: Batch, latent: Tensor) -> Tensor:  # "b"
    """log p(x | h), for each sentence with its h or for all with one."""
    num = len(batch.values)
    roots, rules, words = model.grammar(latent.expand(num, -1), model.parts().halves)
    p = tree.TreePotentials(
        words.log_obs(batch.values), rules, roots.log_root, roots.log_root_leaf, lengths=batch.lengths
    )
    return tree.log_z(p)


@pytest.mark.parametrize("single", [False, True])
def test_a_grammar_for_every_vector(single: bool) -> None:
    model = compound(single=single)
    latent = torch.randn(4, 2, generator=seeded(2), dtype=torch.float64)
    roots, rules, words = model.grammar(latent, model.parts().halves)
    one = torch.ones(4, dtype=torch.float64)
    total = roots.log_root.exp().sum(1)
    if roots.log_root_leaf is not None:
        total = total + roots.log_root_leaf.exp().sum(1)
    assert (roots.log_root_leaf is not None) == single
    torch.testing.assert_close(total, one, **EXACT)
    torch.testing.assert_close(to_dense(rules).sum((2, 3)), one[:, None].expand(4, 2), **EXACT)
    assert not torch.allclose(to_dense(rules)[0], to_dense(rules)[1])
    for sentence in range(4):
        rows = words.log_rows(sentence)
        torch.testing.assert_close(rows.exp().sum(1), torch.ones(3, dtype=torch.float64), **EXACT)
        row = torch.tensor([[0, 1, 2]]).expand(4, -1)
        torch.testing.assert_close(words.log_obs(row)[sentence], rows.mT, **EXACT)


def test_networks_read_symbol_and_vector_together() -> None:
    """The halves add up to a layer over [e; h]."""
    model = compound()
    latent = torch.randn(2, 2, generator=seeded(2), dtype=torch.float64)
    roots, rules, words = model.grammar(latent, model.parts().halves)
    grammar = model.grammar
    for i in range(2):
        start = torch.cat([grammar.start[0], latent[i]])
        expected = torch.log_softmax(grammar.root_out(grammar.root_mlp(start)), 0)
        torch.testing.assert_close(roots.log_root[i], expected, **EXACT)
        parents = torch.cat([grammar.parent, latent[i].expand(2, -1)], 1)
        table = torch.softmax(grammar.pair(parents), 1)
        torch.testing.assert_close(rules.span_span.to_dense()[i], table[:, :4].view(2, 2, 2), **EXACT)
        torch.testing.assert_close(rules.leaf_leaf.to_dense()[i], table[:, 16:].view(2, 3, 3), **EXACT)
        symbols = torch.cat([grammar.symbol, latent[i].expand(3, -1)], 1)
        expected = torch.log_softmax(grammar.word_out(grammar.word_mlp(symbols)), 1)
        torch.testing.assert_close(words.log_rows(i), expected, **EXACT)


def test_the_bound_is_one_and_draws_estimate_it() -> None:
    """One latent number: expectations and log p by quadrature."""
    model, batch = compound(1), some_sentences()
    with torch.no_grad():
        posterior = model.posterior(batch)
        grid = torch.linspace(-9, 9, 361, dtype=torch.float64)
        rows = [Batch(*(x[i].expand(361, *x[i].shape) for x in batch[:2])) for i in range(4)]
        by_value = torch.stack([given(model, row, grid[:, None]) for row in rows])  # "b k"
        step = math.log(float(grid[1] - grid[0]))
        prior = -grid.square() / 2 - math.log(2 * math.pi) / 2
        log_p = torch.logsumexp(by_value + prior, 1) + step
        deviation = torch.exp(posterior.log_variance / 2)
        log_q = -((grid - posterior.mean) / deviation).square() / 2 - torch.log(deviation) - math.log(2 * math.pi) / 2
        weight = torch.exp(log_q + step)
        torch.testing.assert_close(weight.sum(1), torch.ones(4, dtype=torch.float64), rtol=1e-6, atol=0)
        divergence = (weight * (log_q - prior)).sum(1)
        torch.testing.assert_close(posterior.divergence(), divergence, rtol=1e-6, atol=1e-8)
        bound = (weight * by_value).sum(1) - divergence
        assert (bound < log_p).all()
        generator = seeded(5)
        many = Batch(*(x.repeat(400, *[1] * (x.ndim - 1)) for x in batch[:2]))
        draws = model.log_likelihood(many, generator=generator).view(400, 4)
    spread = draws.std(0) / 20
    assert ((draws.mean(0) - bound).abs() < 4 * spread).all()
    assert (spread > 0).all()
    assert model.is_bound


def test_constraints_are_replaced_into_the_potentials() -> None:
    """Three words have one bracket of two or the other: forbid one, forbid the other, and the sum is that of all."""
    model = compound()
    batch = Batch(torch.tensor([[0, 1, 2], [2, 1, 0]]), torch.tensor([3, 3]))
    p = model.potentials(batch, latent="mean")
    bounds = []
    for forbidden in ((0, 2), (1, 3)):
        log_span = torch.zeros(2, 4, 4, dtype=torch.float64)
        log_span[:, forbidden[0], forbidden[1]] = -math.inf
        bounds.append(model.log_z(p._replace(log_span=log_span)))
    both = torch.logaddexp(bounds[0] + p.divergence, bounds[1] + p.divergence) - p.divergence
    torch.testing.assert_close(both, model.log_z(p), **EXACT)


def test_a_sentence_has_its_own_draw_in_every_batch() -> None:
    model, batch = compound(), some_sentences()
    whole = model.log_likelihood(batch)
    alone = [model.log_likelihood(model.batch(batch.values[i : i + 1], batch.lengths[i : i + 1])) for i in (0, 1, 2, 3)]
    torch.testing.assert_close(whole, torch.cat(alone), **EXACT)
    longer = model.batch(torch.cat([batch.values, torch.full((4, 2), -1)], 1), batch.lengths)
    torch.testing.assert_close(model.log_likelihood(longer), whole, **EXACT)
    drawn = [model.log_likelihood(batch, generator=seeded(seed)) for seed in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_all_sentences_given_a_vector_sum_to_less_than_one() -> None:
    model = compound(single=True)
    latent = torch.tensor([[0.3, -1.0]], dtype=torch.float64)
    shares = [float(given(model, all_sentences(length), latent).exp().sum().detach()) for length in (1, 2, 3)]
    assert all(share > 0 for share in shares)
    assert sum(shares) < 1


def test_gradients_reach_every_parameter() -> None:
    model, batch = compound(), some_sentences()

    def loss(*_: Tensor) -> Tensor:
        return model.log_likelihood(batch, generator=seeded(3))

    assert torch.autograd.gradcheck(loss, tuple(model.parameters()), fast_mode=True, check_undefined_grad=False)
    model.log_likelihood(batch).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_the_encoder_is_a_recurrent_network_in_both_directions() -> None:
    """Against torch's own, of packed sentences."""
    model, batch = compound(), some_sentences()
    encoder = model.encoder
    both = torch.nn.LSTM(3, 4, batch_first=True, bidirectional=True, dtype=torch.float64)
    for name, x in encoder.forwards.named_parameters():
        getattr(both, name).data.copy_(x.data)
    for name, x in encoder.backwards.named_parameters():
        getattr(both, f"{name}_reverse").data.copy_(x.data)
    rows = torch.nn.utils.rnn.pack_padded_sequence(
        encoder.word[batch.values], batch.lengths, batch_first=True, enforce_sorted=False
    )
    out, lengths = torch.nn.utils.rnn.pad_packed_sequence(both(rows)[0], batch_first=True, padding_value=-math.inf)
    assert torch.equal(lengths, batch.lengths)
    expected = encoder.out(out.amax(1))
    found = encoder(batch)
    torch.testing.assert_close(torch.cat([found.mean, found.log_variance], 1), expected, **EXACT)


def test_questions_are_asked_at_the_mean() -> None:
    model, batch = compound(), some_sentences()
    query = model(batch.values, batch.lengths)
    mean = model.posterior(batch).mean
    expected = [given(model, Batch(*(x[i : i + 1] for x in batch[:2])), mean[i]) for i in range(4)]
    torch.testing.assert_close(query.log_partition, torch.cat(expected), **EXACT)
    torch.testing.assert_close(query.posterior().span.sum((1, 2)), (batch.lengths - 1).double(), **EXACT)


def test_the_same_after_it_was_saved(tmp_path: Path) -> None:
    model = compound()
    model.save_pretrained(tmp_path)
    again = load_model(tmp_path)
    assert type(again) is CompoundPCFG
    assert torch.equal(again.log_likelihood(some_sentences()), model.log_likelihood(some_sentences()))


def test_a_seed_decides_every_parameter() -> None:
    state = torch.get_rng_state()
    one, two = (build_model(GrammarConfig(family="cpcfg", dim=4, encoder_dim=3), 5, seed=3) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(x, y) for x, y in zip(one.parameters(), two.parameters(), strict=True))


def test_nothing_is_carried() -> None:
    with pytest.raises(UnsupportedError, match="carries nothing"):
        compound().potentials(some_sentences(), carried=torch.zeros(1))
