"""Readers of settings, weights and models: recipes, --set, config.json, tensors, shards, frames.json, metrics."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch import Tensor

from tests.hunt import mutate, mutate_arrays
from tests.hunt.case_files import Files
from tests.hunt.kind import Case
from tests.hunt.model_seeds import FRAMES, GRAMMAR, RECIPE, frame_models, signed, tensors, weights, word_models
from tests.hunt.readers import Outcome, Reader, json_bytes


class Recipe(Reader):
    """A recipe; what it says can be written and read again."""

    name = "read recipe"
    imports = "from rankfold.training.recipes import load_recipe"
    expression = "load_recipe(folder / 'a.toml')"

    def seeds(self) -> list[Files]:
        return [{"a.toml": text.encode()} for text in (RECIPE, FRAMES, GRAMMAR)]

    def damaged(self, rng: Random, name: str, data: bytes, others: list[bytes]) -> bytes:
        return mutate.bytes_of(rng, data, others) if rng.random() < 0.2 else mutate.toml_bytes(rng, data.decode())

    def wrong(self, outcome: Outcome, files: Files, case: Case, scratch: Path) -> str | None:
        if outcome.error is not None:
            return None
        from rankfold.settings import to_toml
        from rankfold.training.recipes import load_recipe

        (scratch / "b.toml").write_text(to_toml(outcome.value), encoding="utf-8")
        return None if load_recipe(scratch / "b.toml") == outcome.value else "another recipe when read again"


class Settings(Reader):
    """A shipped recipe with values set on the command line."""

    name = "read --set"
    imports = "from rankfold.training.recipes import load_recipe"
    expression = "load_recipe('small-lhmm', case['settings'])"
    named = False

    def seeds(self) -> list[Files]:
        return [{"a.txt": b"?"}]

    def draw(self, rng: np.random.Generator) -> Case:
        own = Random(int(rng.integers(2**63)))
        known = (
            "model.rank=64",
            "train.lr=0.1",
            "model.family=hmm",
            "train.betas=[0.9, 0.99]",
            "data.batching=streams",
        )
        settings = [own.choice(known) for _ in range(own.choice((1, 1, 2)))]
        at = own.randrange(len(settings))
        key = settings[at].partition("=")[0]
        if own.random() < 0.5:
            settings[at] = f"{key}={own.choice(mutate.TOML_VALUES)}"
        else:
            settings[at] = mutate.bytes_of(own, settings[at].encode()).decode("utf-8", "surrogateescape")
        return {"files": {}, "victim": "", "settings": settings}


class Metrics(Reader):
    """metrics.jsonl."""

    name = "read metrics"
    imports = "from rankfold.training.run_dir import read_metrics"
    expression = "read_metrics(folder / 'metrics.jsonl')"

    def seeds(self) -> list[Files]:
        records = [{"update": i, "loss": 1.5 / i, "valid": {"perplexity": float("inf")}} for i in range(1, 4)]
        return [{"metrics.jsonl": "".join(json.dumps(record) + "\n" for record in records).encode()}]

    def damaged(self, rng: Random, name: str, data: bytes, others: list[bytes]) -> bytes:
        if rng.random() < 0.4:
            return mutate.bytes_of(rng, data)
        lines = data.splitlines()
        at = rng.randrange(len(lines))
        lines[at] = mutate.json_bytes(rng, json.loads(lines[at]))
        return b"\n".join(lines) + b"\n"

    def wrong(self, outcome: Outcome, files: Files, case: Case, scratch: Path) -> str | None:
        if outcome.error is not None:
            return None
        expected = [json.loads(line) for line in files["metrics.jsonl"].split(b"\n")[:-1]]
        return None if repr(outcome.value) == repr(expected) else "other records"


class Weights(Reader):
    """Tensors of one file: as they were saved, or refused."""

    name = "read tensors"
    imports = "from rankfold.data.sharded_weights import load_sharded"
    expression = "load_sharded(folder)"

    def seeds(self) -> list[Files]:
        return [weights(None)]

    def damaged(self, rng: Random, name: str, data: bytes, others: list[bytes]) -> bytes:
        if name.endswith(".json"):
            return json_bytes(rng, data, [])
        return mutate_arrays.header_bytes(rng, data)

    def wrong(self, outcome: Outcome, files: Files, case: Case, scratch: Path) -> str | None:
        if outcome.error is not None:
            return None
        found, metadata = outcome.value
        return None if metadata == tensors()[1] and equal(found, tensors()[0]) else "other tensors"


def equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    """Whether names, types and bits are the same."""
    return found.keys() == expected.keys() and all(
        x.dtype == expected[name].dtype
        and x.shape == expected[name].shape
        and torch.equal(x.contiguous().reshape(-1).view(torch.uint8), expected[name].reshape(-1).view(torch.uint8))
        for name, x in found.items()
    )


class Shards(Weights):
    """Tensors of several files and their index."""

    name = "read shards"

    def seeds(self) -> list[Files]:
        return [weights(24)]

    def victims(self, files: Files) -> list[str]:
        index = [name for name in files if name.endswith(".json")]
        return [*files, *index * len(files)]


class WordModel(Reader):
    """A folder of a model of words, one of its files damaged; what loads has the weights that are there."""

    name = "read model of words"
    imports = "import rankfold"
    expression = "rankfold.models.load_model(folder)"

    def seeds(self) -> list[Files]:
        return word_models()

    def victims(self, files: Files) -> list[str]:
        return [*files, *["config.json"] * 4]

    def damaged(self, rng: Random, name: str, data: bytes, others: list[bytes]) -> bytes:
        return json_bytes(rng, data, []) if name.endswith(".json") else mutate_arrays.header_bytes(rng, data)

    def wrong(self, outcome: Outcome, files: Files, case: Case, scratch: Path) -> str | None:
        if outcome.error is not None:
            return None
        held = stored(files)
        found = outcome.value.state_dict()
        if found.keys() != held.keys():
            return f"other weights: {sorted(found.keys() ^ held.keys())}"
        off = [name for name, x in found.items() if not torch.equal(bits(x), bits(held[name]))]
        return f"other values: {off}" if off else None


def bits(x: Tensor) -> Tensor:
    """A tensor with NaN made comparable, whatever its type."""
    return x.double().nan_to_num(nan=1.5e300)


def stored(files: Files) -> dict[str, Tensor]:
    """The tensors in files, by the reader of safetensors; pieces are not put together."""
    import safetensors.torch

    found: dict[str, Tensor] = {}
    for name, data in files.items():
        if name.endswith(".safetensors"):
            found.update(safetensors.torch.load(data))
    return found


class FrameModels(WordModel):
    """A folder of a model of frames."""

    name = "read model of frames"
    expression = "rankfold.models.FrameModel.from_pretrained(folder)"

    def seeds(self) -> list[Files]:
        return frame_models()

    def victims(self, files: Files) -> list[str]:
        return [*files, *[name for name in files if name.endswith(".json")] * 3]


class SignedModel(WordModel):
    """A model whose weights are others, with a checksum that is right."""

    name = "read signed weights"
    expression = "rankfold.models.load_model(folder)"

    def seeds(self) -> list[Files]:
        return [files for files in word_models() if "model.safetensors" in files]

    def victims(self, files: Files) -> list[str]:
        return ["model.safetensors"]

    def damaged(self, rng: Random, name: str, data: bytes, others: list[bytes]) -> bytes:
        return signed(rng, data)


class SignedFrameModel(SignedModel):
    """A model of frames whose weights are others, with a checksum that is right."""

    name = "read signed frame weights"
    expression = "rankfold.models.FrameModel.from_pretrained(folder)"

    def seeds(self) -> list[Files]:
        return frame_models()


MODEL_KINDS = (
    Recipe,
    Settings,
    Metrics,
    Weights,
    Shards,
    WordModel,
    FrameModels,
    SignedModel,
    SignedFrameModel,
)
