"""Probabilities that float32 has no number for: found out where tables are made, and computed in float64 instead."""

from __future__ import annotations

import copy
import itertools
import json
import math
from pathlib import Path

import pytest
import torch

from rankfold import cli
from rankfold.data.vocab import Vocabulary
from rankfold.models import FrameModel, GrammarConfig, ModelConfig, build_model
from rankfold.models.catalog import AnyModel
from rankfold.models.config import Family, GrammarFamily

FAR = -150.0  # exp of it is 7e-66: 0 in float32
NONE = -math.inf
EMISSION = [[0.0, 0.0, 1.0, NONE], [0.0, 0.0, NONE, 1.0]]  # state 0 says a, state 1 says b


def sharp() -> AnyModel:
    """Two states that hardly ever change: a sentence of both words needs a step of probability 7e-66."""
    model = build_model(ModelConfig(family="lhmm", num_states=2, rank=2, neural=False), 4)
    near = torch.tensor([[0.0, FAR], [FAR, 0.0]])
    tables = {"transition.source": near, "transition.target": near, "transition.start.embedding": torch.zeros(2)}
    model.load_state_dict({**tables, "emission.log_emission": torch.tensor(EMISSION)})
    model.vocabulary = Vocabulary(("<unk>", "<eos>", "a", "b"), (1, 1, 1, 1))
    return model


def truth(words: list[int]) -> float:
    """log p by all paths, in plain Python: A[z, y] is in proportion to sum_r phi_r(z) phi_r(y)."""
    phi = [[0.0, FAR], [FAR, 0.0]]

    def total(terms: list[float]) -> float:
        top = max(terms)
        return top if top == NONE else top + math.log(sum(math.exp(x - top) for x in terms))

    pair = [[total([phi[z][r] + phi[y][r] for r in range(2)]) for y in range(2)] for z in range(2)]
    step = [[x - total(row) for x in row] for row in pair]
    first = [total([phi[y][r] for r in range(2)]) for y in range(2)]
    start = [x - total(first) for x in first]
    says = [[x - total(row) for x in row] for row in EMISSION]
    paths = []
    for path in itertools.product(range(2), repeat=len(words)):
        weight = start[path[0]] + sum(says[z][w] for z, w in zip(path, words, strict=True))
        paths.append(weight + sum(step[z][y] for z, y in itertools.pairwise(path)))
    return total(paths)


AB, AA = [2, 3, 1], [2, 2, 1]


def test_the_python_path() -> None:
    model = sharp()
    batch = model.batch(torch.tensor([AA, AB]))
    expected = [truth(AA), truth(AB)]
    assert model.log_z(model.potentials(batch))[1] == NONE  # what float32 makes of it
    assert model.log_likelihood(batch).tolist() == pytest.approx(expected, rel=1e-6)  # with a gradient to follow
    assert model(batch.values).log_partition.tolist() == pytest.approx(expected, rel=1e-6)
    with torch.no_grad():
        assert model.log_likelihood(batch).tolist() == pytest.approx(expected, rel=1e-6)
        assert model(batch.values).viterbi().path.tolist() == [[0, 0, 0], [0, 1, 1]]
        assert model(batch.values).posterior().state[1, :2].tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_gradients_reach_the_parameters() -> None:
    model, wide = sharp(), sharp().double()
    for one in (model, wide):
        one.log_likelihood(one.batch(torch.tensor([AB]))).sum().backward()
    for own, other in zip(model.parameters(), wide.parameters(), strict=True):
        assert own.grad is not None
        assert other.grad is not None
        assert own.grad.dtype == torch.float32
        torch.testing.assert_close(own.grad.double(), other.grad, rtol=1e-5, atol=1e-6)


def test_commands_with_the_bad_sentences_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sharp().save_pretrained(tmp_path / "model")
    lines = ["a a"] * 30 + ["a b"] * 3
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n")
    words = {"a a": AA, "a b": AB}
    common = [str(tmp_path / "model"), str(tmp_path / "text.txt"), "--json"]
    assert cli.main(["score", *common]) == 0
    found = [json.loads(line)["log_prob"] for line in capsys.readouterr().out.splitlines()]
    assert found == pytest.approx([truth(words[line]) for line in lines], rel=1e-6)
    assert cli.main(["evaluate", *common]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert result["log_likelihood"] == pytest.approx(sum(truth(words[line]) for line in lines), rel=1e-6)
    assert result["largest_log_difference"] < 1e-6
    assert "too small for float32: computed in float64" in err
    assert cli.main(["tag", *common, "--method", "viterbi"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["states"] == [0, 1]


def widths(model: AnyModel, words: torch.Tensor) -> tuple[list[float], list[float], list[float]]:
    """What float32 alone, the model, and the model in float64 say."""
    wide = copy.deepcopy(model).double()
    with torch.no_grad():
        batch = model.batch(words)
        alone = model.log_z(model.potentials(batch, parts=model.own_parts()))  # type: ignore[arg-type]
        return alone.tolist(), model.log_likelihood(batch).tolist(), wide.log_likelihood(wide.batch(words)).tolist()


# Factors at which float32 alone is off by more than a nat.
@pytest.mark.parametrize(("family", "factor"), [("hmm", 20.0), ("lhmm", 8.0), ("banded", 8.0), ("rank", 20.0)])
def test_families(family: Family, factor: float) -> None:
    model = build_model(ModelConfig(family=family, num_states=4, rank=3, dim=4, band=1), 5, seed=3)
    spread(model, factor)
    alone, found, expected = widths(model, torch.randint(5, (16, 6), generator=torch.Generator().manual_seed(1)))
    assert found == pytest.approx(expected, rel=1e-9)
    assert max(abs(x - y) for x, y in zip(alone, expected, strict=True)) > 1


GRAMMARS = [("npcfg", 20.0), ("tnpcfg", 8.0), ("rankpcfg", 5.0), ("lpcfg", 20.0), ("spcfg", 3.0)]


@pytest.mark.parametrize(("family", "factor"), GRAMMARS)
def test_grammars(family: GrammarFamily, factor: float) -> None:
    config = GrammarConfig(family=family, num_nonterminals=3, num_preterminals=3, rank=3, dim=4)
    model = build_model(config, 4, seed=3)
    spread(model, factor)
    alone, found, expected = widths(model, torch.randint(4, (8, 4), generator=torch.Generator().manual_seed(1)))
    assert found == pytest.approx(expected, rel=1e-9)
    assert max(abs(x - y) for x, y in zip(alone, expected, strict=True)) > 1


def spread(model: AnyModel, factor: float) -> None:
    with torch.no_grad():
        for x in model.parameters():
            x.mul_(factor)


def test_frames() -> None:
    near = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    model = FrameModel.from_tables(
        torch.tensor([0.5, 0.5]).log(), (near, near), mean=torch.tensor([[0.0], [50.0]]), variance=torch.ones(1)
    )
    far = {
        name: torch.tensor([[0.0, FAR], [FAR, 0.0]]) if name.endswith(("log_left", "log_right")) else x
        for name, x in model.state_dict().items()
    }
    model.load_state_dict(far)
    batch = model.batch([[[0.0], [50.0]]])
    with torch.no_grad():
        assert model.states(batch).tolist() == [[0, 1]]
    wide = copy.deepcopy(model).double()
    expected = math.log(0.5) + FAR + math.log(2) - math.log(2 * math.pi)
    assert model.log_likelihood(batch).tolist() == pytest.approx([expected], rel=1e-6)
    assert wide.log_likelihood(wide.batch([[[0.0], [50.0]]])).tolist() == pytest.approx([expected], rel=1e-9)


def test_exact_zeros_stay_in_float32() -> None:
    """Zeros that the parameters mean are no loss: nothing is widened."""
    near = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    model = FrameModel.from_tables(
        torch.tensor([0.5, 0.5]).log(), (near, near), mean=torch.tensor([[0.0], [1.0]]), variance=torch.ones(1)
    )
    with torch.no_grad():
        assert model.parts().log_initial.dtype == torch.float32
    tame = build_model(ModelConfig(family="banded", num_states=4, rank=3, dim=4, band=1), 5)
    with torch.no_grad():
        assert tame.parts().log_initial.dtype == torch.float32  # type: ignore[union-attr]
