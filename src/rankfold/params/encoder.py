"""A network that reads a sentence and guesses its latent vector: two recurrent layers, one from each end.

Read next: `models/compound_pcfg.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from rankfold.data.batch import Batch
from rankfold.params.drawing import Drawing


class Gaussian(NamedTuple):
    """Independent normal numbers for each sentence."""

    mean: Tensor  # "b h"
    log_variance: Tensor  # "b h"

    def draw(self, noise: Tensor) -> Tensor:  # "b h"
        """mean + deviation noise, differentiable in both."""
        return self.mean + torch.exp(self.log_variance / 2) * noise

    def divergence(self) -> Tensor:  # "b"   float64
        """KL(self || standard normal), in nats."""
        mean, log_variance = self.mean.double(), self.log_variance.double()
        return (mean.square() + torch.exp(log_variance) - 1 - log_variance).sum(1) / 2


class SentenceEncoder(nn.Module):
    """Words to a Gaussian: an LSTM from each end, the largest value of each of their outputs, a linear layer.

    What lies beyond a length is never read, and no value is looked at. Source: Kim, Dyer, Rush 2019, the C-PCFG.
    """

    def __init__(self, num_words: int, dim: int, hidden: int, latent: int, drawing: Drawing) -> None:
        super().__init__()
        self.word = drawing.embedding(num_words, dim)
        self.forwards, self.backwards = (_lstm(dim, hidden, drawing) for _ in range(2))
        self.out = drawing.linear(2 * hidden, 2 * latent)

    def forward(self, batch: Batch) -> Gaussian:
        place = torch.arange(batch.words.shape[1], device=batch.words.device)
        inside = place < batch.lengths[:, None]
        # The last word first: every sentence then begins at 0 in both directions, and padding comes after it.
        turned = torch.where(inside, batch.lengths[:, None] - 1 - place, place)
        found = []
        for words, layer in ((batch.words, self.forwards), (batch.words.gather(1, turned), self.backwards)):
            out, _ = layer(embedding(words, self.word))
            found.append(out.masked_fill(~inside.unsqueeze(-1), float("-inf")).amax(1))
        mean, log_variance = self.out(torch.cat(found, 1)).chunk(2, 1)
        return Gaussian(mean, log_variance)


def _lstm(num_in: int, num_out: int, drawing: Drawing) -> nn.LSTM:
    """One layer in one direction; gates are drawn as one matrix each for inputs and outputs."""
    layer = nn.LSTM(num_in, num_out, batch_first=True, device="meta")  # no numbers drawn: they come from our generator
    layer.weight_ih_l0, layer.weight_hh_l0 = drawing.matrix(4 * num_out, num_in), drawing.matrix(4 * num_out, num_out)
    layer.bias_ih_l0, layer.bias_hh_l0 = drawing.bias(4 * num_out, num_out), drawing.bias(4 * num_out, num_out)
    return layer
