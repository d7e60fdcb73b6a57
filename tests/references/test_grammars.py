"""The plain code of grammars and the models compute the same function: log Z and every gradient, in float64."""

from typing import Any

import pytest
import torch

from benchmarks.steps.cases import Case, shrink
from benchmarks.steps.checks import gradient_error
from benchmarks.steps.step import Recursion, gradients, reference_gradients, tensors
from rankfold.cli.bench import relative_error
from rankfold.data.batch import Batch
from rankfold.models.config import KINDS, GrammarConfig
from rankfold.models.pcfg import PCFG
from tests.params.build import stirred
from tests.references.grammars import reference_tree_log_z

CPU = torch.device("cpu")


def grammar(spans: int, leaves: int, **choices: Any) -> GrammarConfig:
    sizes = {"num_nonterminals": spans, "num_preterminals": leaves}
    return GrammarConfig(**({"dim": 3, "num_layers": 1} | sizes | choices))


# Odd on purpose: one symbol, rank 1, rank above symbols, more nonterminals than preterminals, no layer.
CONFIGS = [
    grammar(3, 4, family="npcfg"),
    grammar(1, 1, family="npcfg", num_layers=0),
    grammar(3, 5, family="tnpcfg", rank=2, plan="state"),
    grammar(2, 3, family="tnpcfg", rank=7, plan="rank"),
    grammar(5, 2, family="rankpcfg", rank=1, plan="rank"),
    grammar(3, 4, family="rankpcfg", rank=3, plan="state"),
    grammar(3, 4, family="rankpcfg", rank=3, released=True),
    grammar(3, 2, family="spcfg"),
    grammar(3, 4, family="lpcfg", rank=2),
    grammar(3, 4, family="lpcfg", rank=2, released=True, low_rank=("leaf_leaf", "span_leaf")),
    grammar(2, 3, family="lpcfg", rank=3, low_rank=KINDS),
]
CASES = [Case(config, batch=5, length=6, num_words=4) for config in CONFIGS]


def ragged(case: Case) -> Batch:
    """Every length from 2 on, and padding that is a word like any other."""
    return case.draw(CPU)._replace(lengths=torch.tensor([6, 2, 3, 5, 4]))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}, {case.config.plan}")
def test_the_reference_is_the_model(case: Case) -> None:
    model, batch = stirred(case.build(CPU)), ragged(case)
    ours, plain = gradients(model, batch), reference_gradients(model, batch)
    # The same sums in another order.
    assert relative_error(ours.log_z, plain.log_z) < 1e-12
    assert gradient_error(ours, plain) < 1e-10
    assert max(float(x.abs().max()) for x in plain.parameters) > 1e-3


def test_strings_of_a_length_have_what_the_written_out_grammar_gives_them() -> None:
    """p(length 2) = root . rules(leaf, leaf) . 1, from tables that know nothing of charts."""
    words = torch.cartesian_prod(torch.arange(4), torch.arange(4))
    batch = Batch(words, torch.full((len(words),), 2))
    for case in CASES:
        model = stirred(case.build(CPU))
        assert isinstance(model, PCFG)
        root, rules, _ = model.to_tables()
        n = case.config.num_nonterminals  # type: ignore[union-attr]
        with torch.no_grad():
            total = reference_tree_log_z(tensors(model), model.config, batch).exp().sum()
        assert float(total) == pytest.approx(float(root @ rules[:, n:, n:].sum((1, 2))), abs=1e-12), case.name
        assert 0 < float(total) <= 1 + 1e-12


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}, {case.config.plan}")
def test_the_recursion_is_the_middle_of_a_step(case: Case) -> None:
    """Its gradients, carried on from the potentials to the parameters by autograd, are those of the whole step."""
    model, batch = stirred(case.build(CPU)), ragged(case)
    recursion = Recursion.of(model, batch, "float32")
    found, whole = recursion.run(), gradients(model, batch)
    assert not any(x.grad_fn for x in recursion.inputs)
    torch.testing.assert_close(found.log_z, whole.log_z, rtol=1e-13, atol=0)
    p = model.potentials(batch)
    made = [*{id(x): x for x in p.rules.factors()}.values(), p.log_leaf, p.log_root]
    carried = torch.autograd.grad(made, list(model.parameters()), found.parameters)
    assert gradient_error(whole._replace(parameters=carried), whole) < 1e-10


def test_the_recursion_of_a_compound_grammar_pays_for_its_vector() -> None:
    case = Case(grammar(2, 3, family="cpcfg", latent_dim=2, encoder_dim=3), 5, 6, 4)
    model, batch = case.build(CPU).double(), ragged(case)
    found = Recursion.of(model, batch, "float32").run()
    torch.testing.assert_close(found.log_z, gradients(model, batch).log_z, rtol=1e-13, atol=0)


def test_small_grammars_keep_the_family_and_its_choices() -> None:
    case = Case(grammar(300, 600, family="lpcfg", released=True, low_rank=("leaf_leaf",)), batch=16)
    config: Any = shrink(case).config
    assert (config.family, config.released, config.low_rank) == ("lpcfg", True, ("leaf_leaf",))
    assert config.num_nonterminals + config.num_preterminals < 20
    assert shrink(case).length >= 2
