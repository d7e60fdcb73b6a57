"""The page inside a notebook: a widget that shows it in a frame of its own, and lets the kernel's model answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankfold.analysis.hidden_chain import HiddenChain
from rankfold.errors import DataError, DomainError, ShapeError, UnsupportedError
from rankfold.explore.bundle import NOTEBOOK, page, read_page, static_text
from rankfold.explore.chain_page import ChainPage
from rankfold.explore.grammar_page import GrammarPage
from rankfold.explore.serve import MOST_CHARACTERS
from rankfold.models.base import Model

Answer = Callable[[str], dict[str, Any]]


def explore_widget(path: str | Path, model: Model[Any, Any] | None = None, *, height: int = 720) -> Any:
    """A widget that shows a page of `rankfold explore`; with the model of the page, it answers typed sentences.

    Needs the package anywidget, an extra: pip install 'rankfold[notebook]'.
    """
    try:
        import anywidget
        import traitlets
    except ImportError:
        raise UnsupportedError(
            "explore_widget needs the package anywidget.\n  Install it: pip install 'rankfold[notebook]'."
        ) from None
    bundle = read_page(path)
    answer = None if model is None or bundle.meta["kind"] == "frames" else answers_of(model)

    class Explorer(anywidget.AnyWidget):
        """The page and its height in pixels; a message from the page is a typed sentence."""

        _esm = static_text("widget.js")
        page = traitlets.Unicode().tag(sync=True)
        height = traitlets.Int().tag(sync=True)

        def heard(self, _: Any, content: Any, buffers: Any = None) -> None:
            if answer is not None and isinstance(content, dict):
                self.send(reply(content, answer))

    shown = Explorer(page=page(bundle, token="" if answer is None else NOTEBOOK), height=height)
    shown.on_msg(shown.heard)
    return shown


def answers_of(model: Model[Any, Any]) -> Answer:
    """The function that answers typed sentences by a model of words, a grammar or not."""
    if model.vocabulary is None:
        raise DataError("the model has no vocabulary, so it cannot read a typed sentence.\n  Set model.vocabulary.")
    if model.config.data == "sentences":
        return GrammarPage(model).answer
    return ChainPage(HiddenChain(model), model.vocabulary).answer


def reply(content: dict[str, Any], answer: Answer) -> dict[str, Any]:
    """The reply to a message {"id", "text"}: {"id", "found"} or {"id", "error"}."""
    text = content.get("text")
    number = content.get("id")
    if not isinstance(text, str) or len(text) > MOST_CHARACTERS or not isinstance(number, int):
        return {"id": 0, "error": f"a sentence of at most {MOST_CHARACTERS:,} characters was expected"}
    try:
        return {"id": number, "found": answer(text)}
    except (DataError, DomainError, ShapeError, UnsupportedError) as error:
        return {"id": number, "error": str(error)}
