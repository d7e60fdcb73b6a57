"""The running average of parameters against its definition in plain Python."""

import pytest
import torch
from torch import nn

from rankfold.errors import DataError
from rankfold.training.schedule import Average


def model_of(values: list[float]) -> nn.Module:
    model = nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([values]))
    return model


def step(model: nn.Module, values: list[float]) -> None:
    with torch.no_grad():
        model.weight.copy_(torch.tensor([values]))


def restated(path: list[list[float]], decay: float) -> list[float]:
    average = path[0]
    for n, values in enumerate(path[1:]):
        d = min(decay, (1 + n) / (10 + n))
        average = [d * a + (1 - d) * x for a, x in zip(average, values, strict=True)]
    return average


PATH = [[1.0, -2.0], [3.0, 0.5], [2.5, 4.0], [-1.0, 0.0], [7.0, 1.0]]


@pytest.mark.parametrize("decay", [0.05, 0.2, 0.999])
def test_the_definition(decay: float) -> None:
    model = model_of(PATH[0])
    average = Average(model, decay)
    for values in PATH[1:]:
        step(model, values)
        average.update()
    address = model.weight.data_ptr()
    with average.swap_in():
        assert model.weight.tolist()[0] == pytest.approx(restated(PATH, decay), rel=1e-14, abs=1e-14)
        assert model.weight.data_ptr() == address
    assert model.weight.tolist() == [PATH[-1]]
    assert model.weight.data_ptr() == address
    assert model.weight.requires_grad


def test_the_average_forgets_where_it_began() -> None:
    model = model_of([1000.0, 0.0])
    average = Average(model, 0.999)
    step(model, [1.0, 0.0])
    for _ in range(100):
        average.update()
    with average.swap_in():
        assert float(model.weight[0, 0].detach()) == pytest.approx(1.0, rel=1e-3, abs=0)


def test_parameters_come_back_after_an_error() -> None:
    model = model_of(PATH[0])
    average = Average(model, 0.5)
    step(model, PATH[1])
    with pytest.raises(RuntimeError, match="inside"), average.swap_in():
        raise RuntimeError("inside")
    assert model.weight.tolist() == [PATH[1]]


def test_without_decay_nothing_is_kept() -> None:
    model = model_of(PATH[0])
    average = Average(model, 0.0)
    step(model, PATH[1])
    average.update()
    with average.swap_in():
        assert model.weight.tolist() == [PATH[1]]
    assert average.tensors() == {}
    average.load({})


def test_it_goes_on_from_a_checkpoint() -> None:
    model, other = model_of(PATH[0]), model_of([9.0, 9.0])
    whole = Average(model, 0.999)
    for values in PATH[1:3]:
        step(model, values)
        whole.update()
    resumed = Average(other, 0.999)
    resumed.load({name: x.clone() for name, x in whole.tensors().items()})
    step(other, PATH[3])
    resumed.update()
    with resumed.swap_in():
        assert other.weight.tolist()[0] == pytest.approx(restated(PATH[:4], 0.999), rel=1e-14, abs=1e-14)


def test_the_average_of_another_model_is_refused() -> None:
    average = Average(model_of(PATH[0]), 0.9)
    for wrong in ({}, {"weight": torch.zeros(1, 2)}, {"weight": torch.zeros(2, 2), "updates": torch.tensor(3)}):
        with pytest.raises(DataError, match=r"run/a\.safetensors: its average"):
            average.load(wrong, "run/a.safetensors")
    with pytest.raises(DataError, match="average"):
        Average(model_of(PATH[0]), 0.0).load(average.tensors())
