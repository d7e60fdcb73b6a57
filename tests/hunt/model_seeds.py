"""Valid recipes, tensors and models as they are saved, and tensors changed under a checksum that is right."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from random import Random

import torch
from torch import Tensor

from tests.hunt import mutate
from tests.hunt.case_files import Files
from tests.hunt.readers import fast_folder, json_bytes

RECIPE = """\
[model]
family = "lhmm"
num_states = 8
rank = 4
dim = 4
num_layers = 1
band_init = -1.5
[data]
tokens = 40
batching = "streams"
num_streams = 2
[train]
updates = 3
betas = [0.9, 0.99]
lr = 0.02
optimizer = "adam"
tensorboard = false
"""
FRAMES = '[model]\nfamily = "hsmm"\nnum_states = 4\nmax_duration = 5\n[train]\nupdates = 2\nlr = 1e-2\n'
GRAMMAR = 'base = "small-tnpcfg"\n[model]\nrank = 4\n[train]\nupdates = 2\n'


@cache
def tensors() -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors of several types, and what is said of them."""
    torch_rng = torch.Generator().manual_seed(0)
    made = {
        "a.weight": torch.randn(3, 2, generator=torch_rng),
        "b": torch.arange(5),
        "c": torch.randn(4, generator=torch_rng).bfloat16(),
        "empty": torch.empty(0, 2),
        "scalar": torch.tensor(2.0, dtype=torch.float64),
    }
    return made, {"state": json.dumps({"x": 1}), "other": "\u00e9"}


@cache
def weights(shard_bytes: int | None) -> Files:
    """Tensors as they are saved, whole or in shards."""
    from rankfold.data.sharded_weights import save_sharded

    with tempfile.TemporaryDirectory(dir=fast_folder()) as at:
        save_sharded(at, tensors()[0], max_shard_bytes=shard_bytes, metadata=tensors()[1])
        return files_in(Path(at))


def files_in(folder: Path) -> Files:
    """All files below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


WORDS = ("hmm", "lhmm", "banded", "block", "rank", "tnpcfg", "lpcfg")
FRAME_MODELS = (("hsmm", "gaussian"), ("frame_lhmm", "bernoulli"), ("frame_hmm", "categorical"))


@cache
def word_models() -> list[Files]:
    """A tiny model of words of each family, as it is saved."""
    from rankfold.data.clusters import uniform_clusters
    from rankfold.data.vocab import Vocabulary
    from rankfold.models.catalog import build_model
    from rankfold.models.config import CONFIGS
    from rankfold.models.pretrained import save_model
    from rankfold.settings import build, choose

    made = []
    for family in WORDS:
        grammar = family.endswith("pcfg")
        sizes = {"num_nonterminals": 3, "num_preterminals": 4} if grammar else {"num_states": 8, "num_clusters": 2}
        table = {"family": family, "rank": 4, "dim": 4, "num_layers": 1, **sizes}
        config_type = choose(CONFIGS, table, source="seed")
        known = config_type.__dataclass_fields__
        config = build(config_type, {key: value for key, value in table.items() if key in known}, source="seed")
        vocabulary = Vocabulary.build([["the", "cat", "sat"], ["the", "dog"]], **({"ends": False} if grammar else {}))
        clusters = uniform_clusters(len(vocabulary), 2, seed=0) if family == "block" else None
        model = build_model(config, len(vocabulary), clusters=clusters)
        model.vocabulary = vocabulary
        with tempfile.TemporaryDirectory(dir=fast_folder()) as at:
            save_model(model, at, max_shard_bytes=300 if family == "lhmm" else None)
            made.append(files_in(Path(at)))
    return made


@cache
def frame_models() -> list[Files]:
    """A tiny model of frames of each kind of observations, as it is saved."""
    from rankfold.data.frame_space import FrameSpace
    from rankfold.models import FrameConfig, build_model
    from rankfold.models.pretrained import save_model

    made = []
    for family, observations in FRAME_MODELS:
        config = FrameConfig(
            family=family, observations=observations, num_states=3, num_features=2, rank=2, max_duration=4
        )
        model = build_model(config, 2)
        if observations == "gaussian":
            model.space = FrameSpace(2, "train", 1, (0.5, -1.0), (1.0, 2.0), ("a", "b"), ("x", "y", "z"), True, 25.0)
        with tempfile.TemporaryDirectory(dir=fast_folder()) as at:
            save_model(model, at)
            made.append(files_in(Path(at)))
    return made


def signed(rng: Random, data: bytes) -> bytes:
    """A file of tensors with some of them, or what is said of them, changed, and the checksum of what it is now."""
    from rankfold.data.weights import load_tensors, save_tensors

    with tempfile.TemporaryDirectory(dir=fast_folder()) as at:
        path = Path(at) / "x.safetensors"
        path.write_bytes(data)
        held, metadata = load_tensors(path)
        for _ in range(rng.choice((1, 1, 2))):
            if metadata and rng.random() < 0.6:
                key = rng.choice(list(metadata))
                metadata[key] = changed_text(rng, metadata[key])
            else:
                change_tensor(rng, held)
        save_tensors(path, held, metadata)
        return path.read_bytes()


def changed_text(rng: Random, text: str) -> str:
    """A text of JSON, changed."""
    changed = json_bytes(rng, text.encode(), []) if rng.random() < 0.9 else mutate.bytes_of(rng, text.encode())
    return changed.decode("utf-8", "replace")


def change_tensor(rng: Random, held: dict[str, Tensor]) -> None:
    """Change one tensor, in place of what was there: its type, its shape, its values or its name."""
    name = rng.choice(list(held))
    x = held[name]
    kind = rng.randrange(7)
    if kind == 0:
        types = (torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool, torch.bfloat16, torch.float32)
        held[name] = x.to(rng.choice(types))
    elif kind == 1:
        held[name] = rng.choice(
            (x[None], x.reshape(-1), x.reshape(-1)[:0], x[:1] if x.ndim else x, x.mT if x.ndim > 1 else x)
        )
    elif kind == 2 and x.numel():
        values = (
            (float("nan"), float("inf"), float("-inf"), -1.0, 1e30, 0.0) if x.is_floating_point() else (-1, 99, 2**40)
        )
        y = x.clone().reshape(-1)
        y[rng.randrange(y.numel())] = (
            rng.choice(values) if y.dtype in (torch.float32, torch.float64, torch.int64) else 1
        )
        held[name] = y.reshape(x.shape)
    elif kind == 3:
        del held[name]
    elif kind == 4:
        new = (name + "x", name + "#1", "a#b", "model.", "optimizer.x.y", "carried.0", name + "#99999999999999999999")
        held[rng.choice(new)] = held.pop(name) if rng.random() < 0.5 else x
    elif kind == 5:
        other = rng.choice(list(held))
        held[name], held[other] = held[other], held[name]
    else:
        held[name] = torch.cat([x, x]) if x.ndim else x.reshape(1)
