"""Questions asked of grammars: trees of words with the grammar's own labels, whichever way the sums went."""

import math
from collections import Counter

import pytest
import torch
from torch import Tensor

import rankfold
from rankfold import DomainError, UnsupportedError
from rankfold.data.batch import Batch
from rankfold.data.brackets import parse_tree
from rankfold.data.trees import Tree, tree_of_spans
from rankfold.data.vocab import Vocabulary
from rankfold.decoding.parsed_tree import ParsedTree, as_tree
from rankfold.models import PCFG, CompoundPCFG, GrammarConfig, build_model
from tests.models.grammar_cases import CASES, GrammarCase, some_sentences
from tests.params.build import EXACT, seeded

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
WORDS = Vocabulary(("<unk>", "dogs", "(bark"), (0, 1, 1), ends=False)


def log_weight(model: PCFG, tree: Tree, ids: list[int]) -> float:
    """log p(tree, words) of a labelled tree, by its rules one after the other."""
    tables = model.to_tables()
    n = model.config.num_nonterminals
    words = iter(ids)

    def symbol(label: str) -> int:
        kind, number = label.split("-")
        return int(number) + (0 if kind == "NT" else n)

    def below(node: Tree) -> float:
        if node.is_tag:
            return float(tables.emission[symbol(node.label) - n, next(words)].log())
        left, right = (child for child in node.children if isinstance(child, Tree))
        own = tables.rules[symbol(node.label), symbol(left.label), symbol(right.label)].log()
        return float(own) + below(left) + below(right)

    return float(tables.root[symbol(tree.label)].log()) + below(tree)


@every_case
def test_trees_of_every_grammar(case: GrammarCase) -> None:
    model, batch = case.build(), some_sentences()
    query = model(batch.values, batch.lengths)
    torch.testing.assert_close(query.log_partition, model.log_likelihood(batch), **EXACT)
    torch.testing.assert_close(query.posterior().span.sum((1, 2)), (batch.lengths - 1).double(), **EXACT)
    torch.testing.assert_close(query.posterior().leaf.sum((1, 2)), batch.lengths.double(), **EXACT)
    best, sampled = query.viterbi(), query.sample(40, generator=seeded(1)).trees
    lengths = batch.lengths.tolist()
    for i, (length, row) in enumerate(zip(lengths, batch.values.tolist(), strict=True)):
        top = best.trees[i]
        assert top is not None
        assert top.words == [str(word) for word in row[:length]]
        score = log_weight(model, top, row)
        assert float(best.log_prob[i]) == pytest.approx(score, rel=1e-9)
        for tree in (draw[i] for draw in sampled):
            assert tree is not None
            assert tree.is_binary
            assert log_weight(model, tree, row) <= score + 1e-9
    for labels in (False, True):
        for tree, length in zip(query.mbr(labels=labels).trees, lengths, strict=True):
            assert tree is not None
            assert len(tree.words) == length
            assert tree.is_binary
            assert all(("-" in node.label) == labels for node in tree.nodes())


def test_samples_have_the_posterior_of_trees() -> None:
    """In rank space, with labels of states: their frequencies against their probabilities."""
    model = next(case for case in CASES if case.name == "tnpcfg-neural-3-rank").build()
    batch = model.batch(torch.tensor([[0, 2, 1]]))
    query = model(batch.values)
    drawn = Counter(tree for (tree,) in query.sample(4000, generator=seeded(2)).trees)
    total = float(query.log_partition.detach())
    for tree, count in drawn.most_common(5):
        assert tree is not None
        share = math.exp(log_weight(model, tree, [0, 2, 1]) - total)
        assert count / 4000 == pytest.approx(share, abs=4 * math.sqrt(share / 4000))


def test_joint_map_is_of_ranks() -> None:
    factored = next(case for case in CASES if case.name == "tnpcfg-neural-3-rank").build()
    (tree,) = factored(torch.tensor([[0, 2, 1]])).viterbi(of="joint").trees
    assert tree is not None
    assert all(node.label.startswith(("NT-", "T-")) for node in tree.nodes())
    with pytest.raises(UnsupportedError, match="asks for the ranks of span_span"):
        CASES[0].build()(torch.tensor([[0, 2, 1]])).viterbi(of="joint")


def test_words_of_a_vocabulary() -> None:
    """Brackets in words are written as treebanks write them, so that a tree can be read again."""
    model = CASES[0].build()
    model.vocabulary = WORDS
    (tree,) = model(torch.tensor([[1, 2, 0]])).mbr().trees
    assert tree is not None
    assert tree.words == ["dogs", "-LRB-bark", "<unk>"]
    assert parse_tree(str(tree)) == tree


def test_one_word_and_no_tree() -> None:
    rules = torch.zeros(1, 2, 2)
    rules[0, 1, 1] = 1.0
    model = PCFG.from_tables(torch.ones(1), rules, torch.tensor([[0.5, 0.5]]))
    query = model(torch.tensor([[0, 1, 1], [0, 1, 1], [1, 1, 1]]), torch.tensor([1, 2, 3]))
    assert query.log_partition.detach().exp().tolist() == pytest.approx([0, 0.25, 0])
    pair = Tree("X", (Tree("T", ("0",)), Tree("T", ("1",))))
    assert query.mbr().trees == [Tree("T", ("0",)), pair, None]
    found = query.viterbi().trees
    assert str(found[1]) == "(NT-0 (T-0 0) (T-0 1))"
    assert found[2] is None


def test_potentials_alone_have_no_words() -> None:
    model = CASES[0].build()
    query = model.query(model.potentials(some_sentences()))
    assert query.posterior().span.shape == (4, 5, 5)
    assert "4 sentences of up to 4 words, over 2 symbols of spans and 2 of words" in repr(query)
    with pytest.raises(UnsupportedError, match=r"(?s)trees have words.*rankfold.mbr"):
        query.mbr()


def test_brackets_as_a_tree() -> None:
    found = ParsedTree([(0, 3), (1, 3)], [4, 2], [1, 0, 3])
    expected = tree_of_spans(list("abc"), [(0, 3, "NT-4"), (1, 3, "NT-2")], tags=["T-1", "T-0", "T-3"])
    assert as_tree(found, list("abc")) == expected
    assert str(as_tree(ParsedTree([], tags=[2]), ["a"])) == "(T-2 a)"
    assert as_tree(ParsedTree([]), ["a", "b"]) is None


def frequencies(model: PCFG | CompoundPCFG, num: int, max_length: int) -> Counter[tuple[int, ...]]:
    drawn = model.generate_trees(num, max_length=max_length, generator=seeded(4))
    assert len(drawn.words) == len(drawn.trees) == num
    assert all(1 < len(row) <= max_length for row in drawn.words)
    assert drawn.rejected > 0
    return Counter(tuple(row) for row in drawn.words)


def shares(log_likelihood: Tensor) -> list[float]:
    return torch.softmax(log_likelihood.detach(), 0).tolist()


def test_generated_sentences_have_their_probability() -> None:
    """Among those of two words, given that there are no more."""
    model = CASES[0].build()
    found = frequencies(model, 2000, 2)
    words = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    expected = shares(model.log_likelihood(Batch(words, torch.full((9,), 2))))
    for row, share in zip(words.tolist(), expected, strict=True):
        assert found[tuple(row)] / 2000 == pytest.approx(share, abs=4 * math.sqrt(share / 2000))


def test_sentences_of_one_word_are_generated_where_they_may_be() -> None:
    model = next(case for case in CASES if case.name == "tnpcfg-neural-1-True").build()
    drawn = model.generate_trees(1000, max_length=1, generator=seeded(4))
    found = Counter(word for (word,) in drawn.words)
    expected = shares(model.log_likelihood(Batch(torch.arange(3)[:, None], torch.ones(3, dtype=torch.int64))))
    for word, share in enumerate(expected):
        assert found[word] / 1000 == pytest.approx(share, abs=4 * math.sqrt(share / 1000))


def test_a_compound_grammar_rejects_vectors_with_their_sentences() -> None:
    """Vectors above 0 make long sentences of word 0, those below short ones of word 1: of two words, few are 0s."""
    config = GrammarConfig(
        family="cpcfg", num_nonterminals=1, num_preterminals=1, dim=1, num_layers=0, encoder_dim=1, latent_dim=1
    )
    model = build_model(config, 2).double()
    assert isinstance(model, CompoundPCFG)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.grammar.pair.weight[:3, 1] = 4.0
        model.grammar.word_mlp[0].weight[:, 1] = 1.0
        model.grammar.word_out.weight[:, 0] = torch.tensor([3.0, -3.0])
        words = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
        total = torch.zeros(4, dtype=torch.float64)
        for h in torch.linspace(-6, 6, 121, dtype=torch.float64):
            roots, rules, emission = model.grammar(h.expand(4, 1), model.parts().halves)
            p = rankfold.TreePotentials(emission.log_obs(words), rules, roots.log_root)
            total += rankfold.log_z(p).exp() * math.exp(-(float(h) ** 2) / 2)
    found = frequencies(model, 200, 2)
    expected = (total / total.sum()).tolist()
    assert expected[0] < 0.1
    for row, share in zip(words.tolist(), expected, strict=True):
        assert found[tuple(row)] / 200 == pytest.approx(share, abs=4 * math.sqrt(share / 200))


def test_sentences_that_cannot_be_drawn() -> None:
    config = GrammarConfig(family="cpcfg", dim=2, encoder_dim=2, latent_dim=1)
    model = build_model(config, 3)
    assert isinstance(model, CompoundPCFG)
    with pytest.raises(DomainError, match="max_length 1"):
        model.generate_trees(max_length=1)
    with pytest.raises(DomainError, match="grew beyond max_length=2 words while"):
        model.generate_trees(500, max_length=2, max_rejected=3, generator=seeded())
