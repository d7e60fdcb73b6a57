"""Short constituents in the first updates: sums over the trees that are left, by enumeration; afterwards over all."""

import dataclasses

import pytest
import torch

from rankfold.errors import DomainError
from rankfold.models import GrammarConfig, build_model
from tests.models.grammar_cases import CASES, GrammarCase, enumerated
from tests.params.build import stirred

WORDS = [0, 2, 1, 1, 0]


@pytest.mark.parametrize("case", [case for case in CASES if case.config.neural], ids=lambda case: case.name)
def test_training_sums_over_short_constituents_first(case: GrammarCase) -> None:
    config = dataclasses.replace(case.config, early_width=2, early_updates=10)
    model = GrammarCase(case.name, config).build()
    batch = model.batch(torch.tensor([WORDS, [1, 1, 2, 2, 2]]), torch.tensor([5, 3]))

    def trained() -> list[float]:
        found: list[float] = model.log_likelihood(batch, generator=torch.Generator().manual_seed(0)).exp().tolist()
        return found

    model.begin_update(9)
    short = [enumerated(model, WORDS, 2), enumerated(model, [1, 1, 2], 2)]
    assert trained() == pytest.approx(short, rel=1e-10)
    every = [enumerated(model, WORDS), enumerated(model, [1, 1, 2])]
    assert short[0] < every[0]
    assert model.log_likelihood(batch).exp().tolist() == pytest.approx(every, rel=1e-10)  # evaluations see all trees
    model.begin_update(10)
    assert trained() == pytest.approx(every, rel=1e-10)
    assert "widest" not in model.state_dict()


def test_compound_grammars_do_the_same() -> None:
    """Given the same vector: width 2 leaves no trees with a constituent of three words before the end."""
    sizes = {"num_nonterminals": 2, "num_preterminals": 2, "dim": 3, "num_layers": 1, "latent_dim": 2}
    config = GrammarConfig(family="cpcfg", encoder_dim=3, early_width=2, early_updates=1, **sizes)  # type: ignore[arg-type]
    model = stirred(build_model(config, 3), seed=1)
    batch = model.batch(torch.tensor([WORDS]))
    values = []
    for update in (0, 1):
        model.begin_update(update)
        p = model.potentials(batch, generator=torch.Generator().manual_seed(0))
        values.append(float(model.log_z(p).detach()))
        forbidden = {(i, j) for i in range(5) for j in range(i + 2, 6) if p.log_span[0, i, j] < 0}
        assert forbidden == ({(0, 3), (0, 4), (1, 4)} if update == 0 else set())
    assert values[0] < values[1]


def test_the_two_settings_go_together() -> None:
    with pytest.raises(DomainError, match="early_width is 3 and early_updates is 0"):
        GrammarConfig(early_width=3)
    with pytest.raises(DomainError, match="early_updates is -1"):
        GrammarConfig(early_updates=-1)
