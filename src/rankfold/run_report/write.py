"""The report of a run: read its folder, its data and its best model, and write the page.

What cannot be read (data that have moved, a model of another version) is said on the page, in its place.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rankfold.analysis.decoded_frames import best_states
from rankfold.analysis.hidden_chain import HiddenChain
from rankfold.analysis.named_states import most_used, named_states, telling_first
from rankfold.analysis.ngrams import baselines
from rankfold.analysis.segment_profiles import segment_profiles
from rankfold.analysis.sentence_states import text_use
from rankfold.analysis.state_profiles import state_profiles, stationary_use
from rankfold.analysis.states import effective_number
from rankfold.analysis.symbol_profiles import expect_shared_rules, generated_trees, symbol_profile, symbol_use
from rankfold.data.frame_space import FrameSpace
from rankfold.data.text import escape_brackets
from rankfold.decoding.parsed_tree import LABEL, TAG
from rankfold.errors import DataError, DomainError, ShapeError, UnsupportedError, quantity
from rankfold.files import read_json
from rankfold.models.base import Model
from rankfold.models.config import PERPLEXITY
from rankfold.models.parsing import parse
from rankfold.models.pretrained import load_any
from rankfold.run_report.drawing import learning_curve
from rankfold.run_report.page import (
    Cell,
    Section,
    escape,
    expect_report,
    make_page,
    number,
    paragraph,
    table,
    write_page,
)
from rankfold.run_report.sections import segments_section, settings_section, states_section, symbols_section
from rankfold.settings import build, read_toml
from rankfold.training.config import Config
from rankfold.training.corpus import Corpus, read_corpus
from rankfold.training.recordings import Recordings, read_recordings
from rankfold.training.run_dir import METRICS, RECIPE, REPORT, is_starter, model_folder, read_metrics
from rankfold.training.setup import choose_device

NUM_STATES, NUM_SYMBOLS, NUM_ENTRIES = 30, 12, 10
POSITIONS, WORK = 20_000, 2**37  # of the text whose use of states is counted, and products for all of them
TREE_WORDS, NUM_DRAWN = 2_000, 300  # words of sentences that a grammar parses, sentences that it makes
TRAIN_TOKENS = 2_000_000  # of text that n-grams are counted of; more takes minutes
EXPECTED = (DataError, DomainError, ShapeError, UnsupportedError, OSError)


class RunFolder:
    """What there is to read of a run; `None` and the reason where there is not."""

    def __init__(self, path: Path, data: Path | None, device: str) -> None:
        self.path, self.problems = path, dict[str, str]()
        self.metrics = self._read("metrics", lambda: read_metrics(path / METRICS)) or []
        self.config: Config | None = self._read(
            "recipe", lambda: build(Config, read_toml(path / RECIPE), source=path / RECIPE)
        )
        self.noted: dict[str, Any] = self._read("data.json", lambda: _mapping(path / "data.json")) or {}
        self.environment = self._read("environment", lambda: _mapping(path / "environment.json")) or {}
        self.model: Model[Any, Any] | None = self._read(
            "model", lambda: load_any(model_folder(path), device=str(choose_device(device)))
        )
        self.data: Corpus | Recordings | None = None
        given = self.noted.get("path") if data is None else str(data)
        if self.config is not None and given:
            self.data = self._read("data", lambda: self._data(Path(given), own=data is None))

    def _data(self, path: Path, *, own: bool) -> Corpus | Recordings:
        assert self.config is not None
        model: Any = self.config.model
        found: Corpus | Recordings = (
            read_recordings(path, self.config.data, model)
            if model.data == "recordings"
            else read_corpus(path, self.config.data, getattr(self.model, "vocabulary", None), model=model)
        )
        known = self.noted.get("fingerprint")
        if own and known is not None and found.fingerprint != known:
            raise DataError(f"{path}: not the data of this run any more.")
        return found

    def _read(self, what: str, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except EXPECTED as error:
            self.problems[what] = str(error)
            return None


def write_report(
    run: str | Path, out: str | Path | None = None, *, data: Path | None = None, device: str = "auto"
) -> Path:
    """Write the page of a run (or of a model by itself), by default as its report.html; returns the path.

    A report that is there is replaced, any other file refused. `data` names the run's data where they have moved.
    """
    folder = Path(run)
    if is_starter(folder):
        if out is None:
            raise DataError(f"{run} is a model inside the package, where nothing is written: name the page, -o FILE.")
        folder = model_folder(folder)
    path = folder / REPORT if out is None else Path(out)
    model_folder(folder)  # raises where there is neither a run nor a model
    expect_report(path)
    found = RunFolder(folder, data, device)
    measure = PERPLEXITY if found.model is None else found.model.config.measure
    compared = _baselines(found)
    sections = [_results(found, compared)]
    curve = learning_curve(found.metrics, measure.name, _dashed(found, compared), _compared_on(found))
    sections.append(Section("Learning curve", curve or paragraph("no evaluation was recorded", "note")))
    sections.append(_learned(found))
    sections.append(_settings(found))
    return write_page(path, make_page(f"Run {folder.resolve().name}", _subtitle(found), sections))


def _subtitle(found: RunFolder) -> str:
    config = found.model.config if found.model is not None else None
    size = "" if config is None else f"{config.family}, {config.size}"
    parts = [size, str(found.environment.get("date", ""))[:10], f"rankfold {found.environment.get('rankfold', '?')}"]
    return " - ".join(part for part in parts if part)


def _baselines(found: RunFolder) -> dict[str, float]:
    """Perplexities of n-grams of the training text on the split that the results are of; none where not cheap."""
    corpus = found.data
    if not isinstance(corpus, Corpus) or corpus.train.num_tokens > TRAIN_TOKENS:
        return {}
    split = corpus.test or corpus.valid
    vocabulary, train, test = corpus.vocabulary, corpus.train.sentences, split.sentences
    try:
        counted = baselines(train, test, len(vocabulary), ends=vocabulary.ends)
    except EXPECTED as error:
        found.problems["baselines"] = str(error)
        return {}
    return {name: PERPLEXITY(value, split.num_tokens) for name, value in counted.items()}


def _compared_on(found: RunFolder) -> str:
    """The split that the n-grams are measured on."""
    return "test" if isinstance(found.data, Corpus) and found.data.test is not None else "validation"


def _dashed(found: RunFolder, compared: Mapping[str, float]) -> dict[str, float]:
    """The n-grams, and next to them the model on the same text, which the curve of validation does not show."""
    own = next((record.get("test_perplexity") for record in reversed(found.metrics) if record.get("end")), None)
    if not compared or not isinstance(own, float) or _compared_on(found) != "test":
        return dict(compared)
    return {"this model": own, **compared}


def _results(found: RunFolder, compared: Mapping[str, float]) -> Section:
    last: dict[str, Any] = next((record for record in reversed(found.metrics) if record.get("end")), {})
    unit = "perplexity" if found.model is None else found.model.config.measure.name
    rows = []
    bound = " (a bound)" if last.get("bound") else ""
    for title, key, tokens in (
        ("validation, best", f"best_valid_{unit}", found.noted.get("valid", {})),
        ("test, best model", f"test_{unit}", {"tokens": last.get("test_tokens")}),
    ):
        if isinstance(last.get(key), float):
            count = tokens.get("tokens") if isinstance(tokens, dict) else None
            rows.append(
                [Cell(escape(title + bound)), number(f"{last[key]:,.4g}"), number(f"{count:,}" if count else "")]
            )
    own = len(rows) - 1
    split = _compared_on(found)
    rows += [
        [Cell(escape(f"{name}, {split}")), number(f"{value:,.4g}"), number("")] for name, value in compared.items()
    ]
    head = ("result", "nats per frame", "frames") if unit == "nats" else ("result", unit, "tokens")
    content = table(head, rows, own=own) if rows else ""
    if not last:
        content += paragraph("The run has not finished, or its metrics are gone: no final result.", "note")
    for name, problem in found.problems.items():
        content += paragraph(f"{name}: {problem}", "note")
    return Section("Results", content)


def _learned(found: RunFolder) -> Section:
    if found.model is None:
        return Section("What it learned", paragraph("The model could not be read; the reason is above.", "note"))
    ask = {"text": _states, "sentences": _symbols, "recordings": _segments}[found.model.config.data]
    try:
        with torch.no_grad():
            return ask(found)
    except EXPECTED as error:
        return Section("What it learned", paragraph(str(error), "note"))


def _states(found: RunFolder) -> Section:
    model = found.model
    assert model is not None
    if model.vocabulary is None:
        raise DataError("the model was saved without a vocabulary, so its ids have no words.")
    chain = HiddenChain(model)
    if isinstance(found.data, Corpus):
        width = chain.num_values if model.config.own_rank is None else min(model.config.own_rank, chain.num_values)
        limit = max(200, min(POSITIONS, WORK // (chain.num_values * width)))
        some = _some(found.data.valid.sentences, limit)
        use = text_use(chain, some)
        counted = f"{quantity(sum(map(len, some)), 'position')} of the validation text, <eos> counted"
    else:
        use, counted = stationary_use(chain, max_steps=100), "endless text of the model"
    chosen = telling_first(chain, most_used(use, chain.num_values))[:NUM_STATES]
    profiles = state_profiles(chain, use, chosen, top=NUM_ENTRIES)
    states = named_states(chain, profiles, model.vocabulary.words)
    return states_section(states, chain.of, counted, effective_number(use.share), chain.num_values)


def _symbols(found: RunFolder) -> Section:
    assert found.model is not None
    grammar = expect_shared_rules(found.model)
    if grammar.vocabulary is None:
        raise DataError("the grammar was saved without a vocabulary, so its ids have no words.")
    if isinstance(found.data, Corpus):
        some = _some(found.data.valid.sentences, TREE_WORDS)
        words = [[escape_brackets(word) for word in grammar.vocabulary.decode(row)] for row in some]
        parsed = parse(grammar, words, labels=True)
        use = symbol_use(one.tree for one in parsed if one.possible)
        counted = f"the trees of {quantity(use.num_trees, 'validation sentence')}"
    else:
        use = symbol_use(generated_trees(grammar, NUM_DRAWN))
        counted = f"{quantity(use.num_trees, 'sentence')} that the grammar makes"
    parts = grammar.parts()
    chosen = [symbol for kind in (LABEL, TAG) for symbol in use.most_used(kind, NUM_SYMBOLS)]
    return symbols_section([symbol_profile(grammar, parts, one, use, top=6) for one in chosen], counted)


def _segments(found: RunFolder) -> Section:
    model: Any = found.model
    if not isinstance(found.data, Recordings):
        raise DataError("segments are found in recordings, and the data of the run could not be read.")
    given = found.data.valid
    space = model.space or FrameSpace(given.num_features)
    states = best_states(model, given)
    raw = [np.asarray(space.undo(x)) for x in given.features]
    profiles = segment_profiles(
        states,
        dataclasses.replace(given, features=raw),
        fps=space.fps,
        label_names=space.label_names,
        symbols=model.observation.symbols,
    )
    units = "on the scale of each recording" if space.standardise == "recording" else "in its own units"
    units += "" if space.smooth == 1 else f", smoothed over {space.smooth} frames"
    where = "the validation set" if found.data.own_valid else "the training set"
    return segments_section(profiles, where, units, dict(zip(given.names, states, strict=True)))


def _some(sentences: list[list[int]], limit: int) -> list[list[int]]:
    """Sentences from all over a text, of about so many positions together; at least one."""
    total = sum(map(len, sentences))
    step = max(1, -(-total // limit))
    return sentences[::step]


def _settings(found: RunFolder) -> Section:
    groups: dict[str, dict[str, Any]] = {}
    if found.config is not None:
        raw = read_toml(found.path / RECIPE)
        groups |= {name: values for name, values in raw.items() if isinstance(values, dict)}
    elif found.model is not None:
        groups["model"] = dict(vars(found.model.config))
    groups["data"] = {**groups.get("data", {}), **{k: json.dumps(v) for k, v in found.noted.items()}}
    groups["environment"] = found.environment
    if found.model is not None:
        groups["model"] = {**groups.get("model", {}), "parameters": f"{found.model.num_parameters:,}"}
    return settings_section(groups)


def _mapping(path: Path) -> dict[str, Any]:
    content = read_json(path, f"the {path.name} of a run")
    if not isinstance(content, dict):
        raise DataError(f"{path}: holds no object, but {path.name} of a run does.")
    return content
