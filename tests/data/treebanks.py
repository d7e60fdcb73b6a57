"""Where tests find real treebanks (they skip without them), and trees that hypothesis draws."""

import gzip
import json
from typing import Any

import pytest
from hypothesis import strategies as st

from rankfold.data.trees import Tree

from .corpora import FOLDER

TREEBANKS = FOLDER / "treebank"

needs_treebanks = pytest.mark.skipif(
    not TREEBANKS.is_dir(), reason=f"no treebanks in {TREEBANKS}; RANKFOLD_DATA names the folder that has them"
)


def text_of(name: str) -> str:
    return gzip.open(TREEBANKS / name, "rt", encoding="utf-8").read()


def records(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text_of(name).splitlines()]


_tags = st.builds(lambda tag, word: Tree(tag, (word,)), st.sampled_from(["DT", "NN", "VB"]), st.sampled_from("abcde"))

# Unary chains, one-word constituents and flat ones among them.
trees = st.recursive(
    _tags,
    lambda below: st.builds(
        lambda label, children: Tree(label, tuple(children)),
        st.sampled_from(["S", "NP", "VP"]),
        st.lists(below, min_size=1, max_size=4),
    ),
    max_leaves=12,
).map(lambda tree: Tree("S", (tree,)) if tree.is_tag else tree)
