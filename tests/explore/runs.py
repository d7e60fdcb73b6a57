"""Small runs, saved by an older version, and models of chosen words."""

from pathlib import Path

import torch

from rankfold.data.vocab import EOS, UNK, Vocabulary
from rankfold.models.sequence import HMM

SAVED = Path(__file__).parents[1] / "regression" / "saved_0_1"
ODD = (
    "<script>window.broken=1</script>",
    "\u05e9\u05dc\u05d5\u05dd",
    "\u0645\u0631\u062d\u0628\u0627",
    "a&b",
    '"quoted"',
)


def odd_model(num_states: int = 5, words: tuple[str, ...] = ODD, *, seed: int = 0) -> HMM:
    """An HMM of random tables whose vocabulary holds markup and right-to-left words."""
    generator = torch.Generator().manual_seed(seed)
    all_words = (UNK, EOS, *words)

    def table(*shape: int) -> torch.Tensor:
        drawn = torch.rand(*shape, generator=generator, dtype=torch.float64)
        return drawn / drawn.sum(-1, keepdim=True)

    model = HMM.from_tables(table(num_states), table(num_states, num_states), table(num_states, len(all_words)))
    model.vocabulary = Vocabulary(all_words, tuple([1] * len(all_words)))
    return model
