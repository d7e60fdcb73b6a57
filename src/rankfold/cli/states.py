"""`rankfold states`: what each hidden state of a model of words says, how often, and what follows and precedes it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from rankfold.analysis.hidden_chain import HiddenChain
from rankfold.analysis.named_states import most_used, named_states, telling_first
from rankfold.analysis.sentence_states import text_use
from rankfold.analysis.state_profiles import Use, state_profiles, stationary_use, word_entropies
from rankfold.analysis.states import effective_number
from rankfold.cli.load import add_model, load_words, read_text, tell_unknown
from rankfold.cli.output import printable, say, to_json
from rankfold.data.vocab import Vocabulary
from rankfold.errors import DataError, DomainError, quantity
from rankfold.models.strings import tell_every
from rankfold.plots.picture import expect_picture

Sort = Literal["use", "entropy"]
LEAST = 5e-4  # printed as 0.1%; --json has all
EVERY = 2000  # sentences between two lines of progress
DESCRIPTION = (
    "Print what the hidden states of a model say: the share of positions each has (with --data: of that text, by exact "
    "posteriors; without: of endless text of the model), its most probable words, the words that tell it from the "
    "others, the states that follow and precede it, and how uncertain its words and its next state are, in nats. "
    "A rank-space model has summed its states out: it is shown by its ranks."
)
EXAMPLE = """\
example:
  rankfold states runs/small
  rankfold states runs/small --data valid.txt --top 20 --sort entropy
  rankfold states runs/small --word return
  rankfold states runs/small --state 17 203 --json
  rankfold states runs/small --data valid.txt --plot states.png"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--data", metavar="FILE", help="a text, one sentence per line; - is standard input")
    parser.add_argument("--state", type=int, nargs="+", action="extend", metavar="N", help="these states alone")
    parser.add_argument("--word", help="the states that say this word, the most probable first")
    parser.add_argument("--top", type=int, default=10, metavar="K", help="how many states are shown (default: 10)")
    parser.add_argument("--entries", type=int, default=8, metavar="K", help="words and neighbours of each (default: 8)")
    parser.add_argument(
        "--sort",
        choices=("use", "entropy"),
        default="use",
        help="use (default): the most used first, those that say <eos> or <unk> most after all others; entropy: of the "
        "states in use those of the fewest words first",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="save a picture of all states: use against entropy")


class Shown(NamedTuple):
    """States as plain data, and what their use was counted on."""

    of: str
    num_states: int
    counted: str
    effective: float
    states: list[dict[str, Any]]


def run(arguments: argparse.Namespace) -> int:
    """Print the states, and save the picture."""
    if arguments.plot is not None:
        expect_picture(arguments.plot)  # before the work
    if arguments.state is not None and arguments.word is not None:
        raise DataError("--state and --word: one of them.")
    for name in ("top", "entries"):
        if getattr(arguments, name) < 1:
            raise DomainError(f"--{name} is {getattr(arguments, name)}, but must be at least 1.")
    model, vocabulary = load_words(arguments.folder, arguments.device)
    chain = HiddenChain(model)
    _expect_states(chain, arguments.state or ())
    word = None if arguments.word is None else known_word(arguments.word, vocabulary)
    use, counted = read_use(chain, vocabulary, arguments.data)
    if arguments.state is not None:
        chosen = list(dict.fromkeys(arguments.state))
    elif word is not None:
        chosen = _saying(chain, use, word)[: arguments.top]
    else:
        chosen = ordered(chain, use, arguments.sort)[: arguments.top]
    profiles = state_profiles(chain, use, chosen, top=arguments.entries)
    found = named_states(chain, profiles, vocabulary.words)
    if word is not None:
        _add_share_of_word(chain, use, word, found)
    shown = Shown(chain.of, chain.num_values, counted, effective_number(use.share), found)
    if arguments.plot is not None:
        from rankfold.plots.profiles import plot_states

        say(f"wrote {plot_states(chain, use, arguments.plot, words=vocabulary.words, counted=counted)}")
    print(to_json(shown._asdict(), indent=2) if arguments.json else _text(shown, arguments.word))
    return 0


def read_use(chain: HiddenChain, vocabulary: Vocabulary, data: str | None) -> tuple[Use, str]:
    """The use of all states, on a text or in endless text of the model, and in words what it was counted on."""
    if data is None:
        use = stationary_use(chain)
        settled = "" if use.moved < 1e-5 else f", not settled: a step still moves {use.moved:.1g} of it"
        return use, f"endless text of the model{settled}"
    path = None if data == "-" else Path(data)
    text = read_text(path, vocabulary)
    tell_unknown(text.sentences, vocabulary)
    sentences = vocabulary.encode_all(text.sentences).sentences
    progress = tell_every(EVERY, lambda done: say(f"{done:,} of {len(sentences):,} sentences"))
    use = text_use(chain, sentences, progress=progress)
    return use, f"{quantity(sum(map(len, sentences)), 'position')} of {text.where}, <eos> counted"


def known_word(word: str, vocabulary: Vocabulary) -> int:
    """The id of a word; `DataError` for one that the model does not know."""
    if not vocabulary.knows(word):
        raise DataError(
            f"{word!r} is not among the {len(vocabulary):,} words of the model.\n"
            "  Write <unk> where unknown words are meant, <eos> for the end of a sentence."
        )
    return vocabulary.id_of(word)


def ordered(chain: HiddenChain, use: Use, sort: Sort) -> list[int]:
    """The states in the order in which they are shown."""
    used = most_used(use, chain.num_values)
    if sort == "use":
        return telling_first(chain, used)
    entropy = word_entropies(chain)
    # A tenth of an equal share: below it a state's words are mostly as they were drawn at the start.
    in_use = [state for state in used if use.share[state] > 1 / (10 * chain.num_values)]
    return sorted(in_use, key=lambda state: (float(entropy[state]), state))


def _expect_states(chain: HiddenChain, states: Sequence[int]) -> None:
    for state in states:
        if not 0 <= state < chain.num_values:
            raise DomainError(f"there is no {chain.of[:-1]} {state}: this model has 0 to {chain.num_values - 1}.")


def _of_word(chain: HiddenChain, use: Use, word: int) -> Any:  # "z"
    """p(state | word) by state: use times p(word | state), normalised."""
    joint = use.share * chain.word_share(word).double().cpu().numpy()
    return joint / joint.sum() if joint.sum() > 0 else joint


def _saying(chain: HiddenChain, use: Use, word: int) -> list[int]:
    share = _of_word(chain, use, word)
    return [int(state) for state in np.argsort(-share, kind="stable") if share[state] > 0]


def _add_share_of_word(chain: HiddenChain, use: Use, word: int, found: list[dict[str, Any]]) -> None:
    share = _of_word(chain, use, word)
    for state in found:
        state["share_of_word"] = float(share[state["state"]])


def _text(shown: Shown, word: str | None) -> str:
    lines = [
        f"{shown.num_states:,} {shown.of}; use is the share of {shown.counted}",
        f"as many as {shown.effective:,.0f} equally used ones do the work",
        "nats: how uncertain its words and what comes next are; typical x2: twice as frequent as in all text",
    ]
    for state in shown.states:
        head = f"{shown.of[:-1]} {state['state']}   use {state['use']:.2%}"
        if word is not None:
            head += f"   says {state['share_of_word']:.1%} of all {printable(word)}"
        lines += ["", f"{head}   words {state['word_entropy']:.2f} nats   next {state['next_entropy']:.2f} nats"]
        words = [f"{printable(x)} {p:.1%}" for x, p in state["words"] if p >= LEAST]
        lines.append("  words     " + ("  ".join(words) or "none above 0.1%"))
        if state["typical"]:
            lines.append("  typical   " + "  ".join(f"{printable(x)} {_times(lift)}" for x, lift in state["typical"]))
        for name, label in (("next", "next"), ("previous", "before")):
            if name == "next" and state["ends"] >= 1 - LEAST:
                lines.append("  next      none: it ends the sentence")
                continue
            entries = [f"{other} {printable(says)} {p:.1%}" for other, p, says in state[name] if p >= LEAST]
            lines.append(f"  {label:<10}" + ("  ".join(entries) or ("none above 0.1%" if state[name] else "none")))
    if not shown.states:
        lines += ["", "no state to show"]
    return "\n".join(lines)


def _times(lift: float) -> str:
    return f"x{lift:,.0f}" if lift >= 10 else f"x{lift:.1f}"
