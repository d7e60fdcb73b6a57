"""The widget: the page with a model that answers; in a browser it is shown by hand, see docs/explore.md."""

from pathlib import Path
from typing import Any

import pytest

import rankfold
from rankfold.analysis.hidden_chain import HiddenChain
from rankfold.errors import DataError, UnsupportedError
from rankfold.explore.bundle import page
from rankfold.explore.chain_page import ChainPage
from rankfold.explore.widget import answers_of, explore_widget, reply
from tests.explore.runs import ODD, SAVED, odd_model


def test_messages_of_the_page_are_answered_or_refused() -> None:
    model: Any = odd_model()
    answer = answers_of(model)
    found = reply({"id": 3, "text": "a&b"}, answer)
    assert found["id"] == 3
    assert found["found"]["words"] == ["a&b", "<eos>"]
    assert "no words" in reply({"id": 4, "text": " "}, answer)["error"]
    for wrong in ({"id": 5, "text": 7}, {"text": "a&b"}, {"id": 6, "text": "x" * 3000}):
        assert "at most 2,000 characters" in reply(wrong, answer)["error"]
    grammar: Any = rankfold.load(SAVED / "npcfg")
    assert reply({"id": 1, "text": "w01 w02"}, answers_of(grammar))["found"]["spans"] == [(0, 2)]
    model.vocabulary = None
    with pytest.raises(DataError, match="no vocabulary"):
        answers_of(model)


def test_a_widget_holds_the_page(tmp_path: Path) -> None:
    pytest.importorskip("anywidget")
    model: Any = odd_model()
    bundle = ChainPage(HiddenChain(model), model.vocabulary).bundle([list(ODD)], about_text={"title": "a run"})
    file = tmp_path / "page.html"
    file.write_text(page(bundle))
    shown = explore_widget(file, model, height=500)
    assert shown.height == 500
    assert 'data-token="notebook"' in shown.page
    assert "connect-src 'none'" in shown.page
    assert 'data-token=""' in explore_widget(file).page


def test_without_its_package_a_widget_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "anywidget", None)
    with pytest.raises(UnsupportedError, match="notebook"):
        explore_widget(tmp_path / "page.html")
