"""Chains of blocks in one launch against plain loops of logsumexp in float64."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from tests.kernels.device import DEVICE, HERE, close

pytest.importorskip("triton")

from rankfold.kernels.block_scan import triton as kernel

pytestmark = HERE
INF, NAN = float("inf"), float("nan")
SHAPES = [(3, 5, 7), (2, 1, 4), (1, 3, 17), (4, 6, 1), (2, 2, 16)]  # b, t, k


class Given(NamedTuple):
    log_initial: Tensor  # "b k"
    log_transition: Tensor  # "b s k k"
    log_obs: Tensor  # "b t k"


def given(b: int, t: int, k: int, *, zeros: float = 0.0, spread: float = 2.0, seed: int = 0) -> Given:
    g = torch.Generator().manual_seed(seed)

    def logs(*shape: int) -> Tensor:
        x = spread * torch.randn(shape, generator=g)
        return torch.where(torch.rand(shape, generator=g) < zeros, -INF, x).to(DEVICE)

    return Given(logs(b, k), logs(b, t - 1, k, k), logs(b, t, k))


class Truth(NamedTuple):
    joint: Tensor  # "t b k"    log p(x_1..t, i_t)
    future: Tensor  # "t b k"   log p(x_t+1..T | i_t)


def by_loops(x: Given) -> Truth:
    """Unnormalised messages, in float64."""
    first, moves, obs = (y.double() for y in x)
    joint = [first + obs[:, 0]]
    for t in range(1, obs.shape[1]):
        joint.append(torch.logsumexp(joint[-1][:, :, None] + moves[:, t - 1], 1) + obs[:, t])
    future = [torch.zeros_like(first)]
    for t in range(obs.shape[1] - 1, 0, -1):
        future.insert(0, torch.logsumexp(moves[:, t - 1] + (obs[:, t] + future[0])[:, None], 2))
    return Truth(torch.stack(joint), torch.stack(future))


def normalised(log_x: Tensor) -> Tensor:
    return log_x - torch.logsumexp(log_x, -1, keepdim=True)


def limit(log_x: Tensor) -> Tensor:
    """Logarithms of up to a few hundred, rounded at every step."""
    finite = torch.where(log_x.isfinite(), log_x, 0.0)
    return 1e-5 * (1 + finite.abs())


@pytest.mark.parametrize(("b", "t", "k"), SHAPES)
@pytest.mark.parametrize("spread", [2.0, 100.0])
def test_filtered(b: int, t: int, k: int, spread: float) -> None:
    x = given(b, t, k, spread=spread)
    messages, steps = kernel.filter_states(*x)
    joint = by_loops(x).joint
    assert steps.dtype == torch.float64
    total = torch.logsumexp(joint, -1)
    close(messages, normalised(joint), spread * limit(normalised(joint)))
    close(steps.cumsum(0), total, limit(total))


@pytest.mark.parametrize(("b", "t", "k"), SHAPES)
def test_weights_of_zero(b: int, t: int, k: int) -> None:
    x = given(b, t, k, zeros=0.3, seed=3)
    x.log_initial[:, 0], x.log_obs[:, :, 0], x.log_transition[:, :, 0, 0] = 0.0, 0.0, 0.0  # one path is possible
    if k > 4:
        x.log_transition[:, :, :, 3] = -INF  # a state nobody reaches
        x.log_transition[:, :, 2] = -INF  # a state that leads nowhere
    truth = by_loops(x)
    messages, steps = kernel.filter_states(*x)
    close(messages, normalised(truth.joint), limit(normalised(truth.joint)))
    close(steps.cumsum(0), torch.logsumexp(truth.joint, -1), limit(torch.logsumexp(truth.joint, -1)))
    ahead = kernel.future(x.log_transition, x.log_obs, torch.full((b,), t, device=DEVICE))
    close(ahead[:-1], normalised(truth.future)[:-1], limit(normalised(truth.future)[:-1]))
    weight = torch.rand(b, t - 1, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    check_moves(x, truth, messages, ahead, weight)


def check_moves(x: Given, truth: Truth, messages: Tensor, ahead: Tensor, weight: Tensor) -> None:
    found = kernel.transition_posteriors(x.log_transition, x.log_obs, messages, ahead, weight)
    pairs = x.log_transition.double() + truth.joint[:-1].transpose(0, 1)[..., None]
    pairs += (x.log_obs.double() + truth.future.transpose(0, 1))[:, 1:, None]
    expected = torch.softmax(pairs.flatten(2), -1).reshape(pairs.shape) * weight.double()[..., None, None]
    close(found, expected, 1e-5 + 0 * expected)


@pytest.mark.parametrize(("b", "t", "k"), SHAPES)
def test_future_of_ragged_sequences(b: int, t: int, k: int) -> None:
    """Beyond a length there is NaN, which nobody reads; the future is 0 there and at the last position."""
    x = given(b, t, k)
    lengths = torch.tensor([t, 1, max(1, t - 1), max(1, t // 2)][:b], device=DEVICE)
    for i, length in enumerate(lengths.tolist()):
        x.log_obs[i, length:] = NAN
        x.log_transition[i, length - 1 :] = NAN
    ahead = kernel.future(x.log_transition, x.log_obs, lengths)
    messages = kernel.filter_states(*x)[0]
    weight = torch.ones(b, t - 1, device=DEVICE)
    for i, length in enumerate(lengths.tolist()):
        assert (ahead[length - 1 :, i] == 0).all()
        weight[i, length - 1 :] = 0.0
        alone = Given(
            x.log_initial[i : i + 1], x.log_transition[i : i + 1, : length - 1], x.log_obs[i : i + 1, :length]
        )
        truth = by_loops(alone)
        if length > 1:
            expected = normalised(truth.future[:-1])
            close(ahead[: length - 1, i : i + 1], expected, limit(expected))
        check_moves(
            alone, truth, messages[:length, i : i + 1], ahead[:length, i : i + 1], weight[i : i + 1, : length - 1]
        )
    found = kernel.transition_posteriors(x.log_transition, x.log_obs, messages, ahead, weight)
    assert (found[weight == 0] == 0).all()


@pytest.mark.parametrize("how", ["observation", "transition", "start"])
def test_an_impossible_sequence(how: str) -> None:
    """-inf at the step that nobody survives, no weight on its moves, and nothing of it in its neighbour."""
    x = given(2, 4, 5)
    step = {"observation": 2, "transition": 1, "start": 0}[how]
    if how == "observation":
        x.log_obs[0, 2] = -INF
    elif how == "transition":
        x.log_transition[0, 0] = -INF
    else:
        x.log_initial[0] = -INF
    messages, steps = kernel.filter_states(*x)
    assert steps[step, 0] == -INF
    assert steps[:step, 0].isfinite().all()
    lengths = torch.full((2,), 4, device=DEVICE)
    ahead = kernel.future(x.log_transition, x.log_obs, lengths)
    alone = Given(*(y[1:] for y in x))
    total = torch.logsumexp(by_loops(alone).joint, -1)
    close(steps[:, 1:].cumsum(0), total, limit(total))
    weight = torch.tensor([[0.0] * 3, [1.0] * 3], device=DEVICE)
    assert (kernel.transition_posteriors(x.log_transition, x.log_obs, messages, ahead, weight)[0] == 0).all()
    check_moves(alone, by_loops(alone), messages[:, 1:], ahead[:, 1:], weight[1:])
