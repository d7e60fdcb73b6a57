"""`rankfold analyse`: what a trained model's tables and errors look like: ranks, rules, use, losses, interchange."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rankfold.analysis.cluster_purity import cluster_purity
from rankfold.analysis.hidden_chain import HiddenChain
from rankfold.analysis.interchange import interchange, interchanged
from rankfold.analysis.matrix_ranks import THRESHOLD, emission_spectrum, transition_spectrum
from rankfold.analysis.rule_entropies import KINDS, rule_entropies, some_parents
from rankfold.analysis.states import state_usage
from rankfold.analysis.symbol_profiles import expect_shared_rules
from rankfold.analysis.text_losses import Group, losses_by_frequency, losses_by_length
from rankfold.cli.load import Text, add_model, load_words, read_text, tell_unknown
from rankfold.cli.output import printable, say, table, to_json
from rankfold.cli.states import read_use
from rankfold.data.clusters import read_clusters
from rankfold.data.vocab import Vocabulary
from rankfold.errors import DataError, DomainError, quantity
from rankfold.plots.picture import expect_picture

PARENTS = 256  # of a grammar, whose rules are looked at where no number is given
DESCRIPTION = "Analyse a trained model of words: the ranks of its tables, its rules, its states, where its nats are."
EXAMPLE = """\
example:
  rankfold analyse ranks runs/small --plot ranks.png
  rankfold analyse rules runs/grammar --json
  rankfold analyse use runs/small --data valid.txt --clusters clusters.txt
  rankfold analyse losses runs/small --data valid.txt --plot losses.png
  rankfold analyse interchange runs/rank --data valid.txt"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    subjects = parser.add_subparsers(title="subjects", required=True, metavar="SUBJECT")

    def add(name: str, run: Callable[[argparse.Namespace], int], about: str, more: str) -> Any:
        example = "\n".join(line for line in EXAMPLE.splitlines() if name in line or line == "example:")
        subject = subjects.add_parser(name, help=about, description=more, epilog=example)
        subject.set_defaults(run=run)
        add_model(subject)
        subject.add_argument("--plot", type=Path, metavar="FILE", help="save a picture")
        return subject

    text = {"metavar": "FILE", "help": "a text, one sentence per line; - is standard input"}
    ranks = add(
        "ranks",
        run_ranks,
        "singular values of transition and emission, and their empirical ranks",
        "The singular values of p(next | state) and p(word | state) in float64, and how many are above a threshold. A "
        "low-rank transition is never written out; other tables are, and the memory they take is checked first. At "
        "16,384 states a dense table takes 6 GiB.",
    )
    ranks.add_argument(
        "--threshold", type=float, default=THRESHOLD, metavar="X", help=f"default: {THRESHOLD:g}, as published"
    )
    rules = add(
        "rules",
        run_rules,
        "entropies of a grammar's rules, and the kinds of their children",
        "The entropy of p(left, right | parent) of every nonterminal, and the share of its children that are two "
        "nonterminals (NN), two preterminals (PP), or one of each (NP, PN).",
    )
    rules.add_argument(
        "--parents",
        type=int,
        default=PARENTS,
        metavar="N",
        help=f"how many nonterminals, drawn where there are more (default: {PARENTS})",
    )
    use = add(
        "use",
        run_use,
        "how evenly states are used, and how well they keep to clusters of words",
        "The share of positions of every state, as many equally used ones as do the work, and with --clusters their "
        "purity: the share of p(word | state) that lies in one cluster.",
    )
    use.add_argument("--data", **text)
    use.add_argument("--clusters", type=Path, metavar="FILE", help="word<TAB>cluster, or bits<TAB>word<TAB>count")
    losses = add(
        "losses",
        run_losses,
        "perplexity by the length of sentences and by the frequency of words",
        "The perplexity of a text by the number of words of its sentences, and (not of grammars) by how often the "
        "training text held each word. The groups add up to the whole text, each sentence by itself.",
    )
    losses.add_argument("--data", required=True, **text)
    change = add(
        "interchange",
        run_interchange,
        "a rank-space HMM of m states and rank r as the HMM of r states and rank m that it is",
        "The perplexity of a text by both orders of a rank-space HMM, and by an HMM of as many states as it has ranks "
        "that is built from its numbers: all three are one; and the empirical rank of that transition.",
    )
    change.add_argument("--data", required=True, **text)


def run_ranks(arguments: argparse.Namespace) -> int:
    """Print the empirical ranks."""
    _before(arguments)
    if not arguments.threshold > 0:
        raise DomainError(f"--threshold is {arguments.threshold}, but must be above 0.")
    chain = HiddenChain(load_words(arguments.folder, arguments.device)[0])
    spectra = {"transition": transition_spectrum(chain), "emission": emission_spectrum(chain)}
    found: dict[str, Any] = {"of": chain.of, "threshold": arguments.threshold}
    rows = []
    for name, spectrum in spectra.items():
        facts = spectrum.summary(arguments.threshold)
        found[name] = {**facts, "singular_values": spectrum.values.tolist()}
        size = f"{spectrum.shape[0]:,} x {spectrum.shape[1]:,}"
        rows.append([name, size, f"{facts['bound']:,}", f"{facts['rank']:,}", f"{facts['effective']:,.1f}"])
    head = ["matrix", "size", "rank at most", f"values > {arguments.threshold:g}", "effective"]
    if arguments.plot is not None:
        from rankfold.plots.analyses import plot_spectra

        say(f"wrote {plot_spectra(spectra, arguments.plot, threshold=arguments.threshold)}")
    return _show(arguments, found, table(head, rows))


def run_rules(arguments: argparse.Namespace) -> int:
    """Print the entropies and shares."""
    _before(arguments)
    grammar = expect_shared_rules(load_words(arguments.folder, arguments.device)[0])
    num = grammar.config.num_nonterminals
    parents = some_parents(num, arguments.parents)
    with torch.no_grad():
        parts = grammar.parts()
    rules = rule_entropies(parts, parents)
    kinds = dict(zip(KINDS, rules.kinds.mean(0).tolist(), strict=True))
    found = {
        "num_nonterminals": num,
        "mean_entropy": float(rules.entropy.mean()),
        "mean_kinds": kinds,
        "parents": [
            {"parent": f"NT-{parent}", "entropy": entropy, **dict(zip(KINDS, shares, strict=True))}
            for parent, entropy, shares in zip(parents, rules.entropy.tolist(), rules.kinds.tolist(), strict=True)
        ],
    }
    if arguments.plot is not None:
        from rankfold.plots.analyses import plot_rules

        say(f"wrote {plot_rules(rules, arguments.plot, num_nonterminals=num)}")
    low, high = rules.entropy.min(), rules.entropy.max()
    text = [
        f"{grammar.config.size}; {len(parents):,} of {num:,} parents",
        f"entropy of rules   mean {found['mean_entropy']:.3f} nats, from {low:.3f} to {high:.3f}",
        "kinds of children  " + "  ".join(f"{name} {share:.3f}" for name, share in kinds.items()),
    ]
    return _show(arguments, found, "\n".join(text))


def run_use(arguments: argparse.Namespace) -> int:
    """Print use and purity."""
    _before(arguments)
    model, vocabulary = load_words(arguments.folder, arguments.device)
    chain = HiddenChain(model)
    clusters = None
    if arguments.clusters is not None:
        clusters = read_clusters(arguments.clusters, vocabulary.words, missing="last")
    use, counted = read_use(chain, vocabulary, arguments.data)
    usage = state_usage(torch.from_numpy(use.share))
    half = int(np.searchsorted(np.cumsum(usage.shares), 0.5)) + 1
    found: dict[str, Any] = {
        "of": chain.of,
        "num_states": chain.num_values,
        "counted": counted,
        "effective": usage.effective,
        "num_used": usage.num_used,
        "half": half,
    }
    lines = [
        f"{chain.num_values:,} {chain.of}; use is the share of {counted}",
        f"effective   as many as {usage.effective:,.1f} equally used ones do the work; {half:,} have half of it",
        f"in use      {usage.num_used:,} have more than a tenth of an equal share",
    ]
    purity = None
    if clusters is not None:
        purity = cluster_purity(chain, use, clusters)
        there = purity.states[purity.states > 0]
        found |= {
            "num_clusters": clusters.num_clusters,
            "purity": purity.mean,
            "purity_of_one_state": purity.chance,
            "states_per_cluster": float(there.mean()),
        }
        lines += [
            f"purity      {purity.mean:.3f} of a state's words lie in one of {clusters.num_clusters:,} clusters; "
            f"of one state for all words {purity.chance:.3f}",
            f"clusters    have {there.mean():,.1f} equally used states each, on average",
        ]
    found["use"] = use.share.tolist()
    found |= {} if purity is None else {"cluster": purity.cluster.tolist(), "purities": purity.purity.tolist()}
    if arguments.plot is not None:
        from rankfold.plots.analyses import plot_use

        say(f"wrote {plot_use(use, arguments.plot, of=chain.of, counted=counted, purity=purity)}")
    return _show(arguments, found, "\n".join(lines))


def run_losses(arguments: argparse.Namespace) -> int:
    """Print the perplexity of each group."""
    _before(arguments)
    model, vocabulary = load_words(arguments.folder, arguments.device)
    text = _sentences(arguments.data, vocabulary, grammar=model.config.data == "sentences")
    words = text.sentences
    if model.config.data == "sentences" and not model.config.single_words:
        words = [sentence for sentence in words if len(sentence) > 1]
        if left_out := len(text.sentences) - len(words):
            say(f"left out: {quantity(left_out, 'sentence')} of one word")
    if not words:
        raise DataError(f"{text.where}: no sentence that the model can say.")
    groups = {"length": losses_by_length(model, words)}
    if vocabulary.ends:
        groups["frequency"] = losses_by_frequency(model, vocabulary, vocabulary.encode_all(words).sentences)
    tokens, nats = (sum(getattr(group, name) for group in groups["length"]) for name in ("tokens", "nats"))
    whole = Group("all", tokens, nats)
    found = {
        "perplexity": whole.perplexity,
        "tokens": tokens,
        "nats": nats,
        "denominator": model.denominator,
        "bound": model.is_bound,
        **{
            f"by_{name}": [{**group._asdict(), "perplexity": group.perplexity} for group in own]
            for name, own in groups.items()
        },
    }
    titles = {"length": "words of the sentence", "frequency": "count of the word in training"}
    if arguments.plot is not None:
        from rankfold.plots.analyses import plot_losses

        shown = {titles[name]: own for name, own in groups.items()}
        say(f"wrote {plot_losses(shown, arguments.plot, perplexity=whole.perplexity, is_bound=model.is_bound)}")
    tables = [
        table([titles[name], "tokens", "perplexity", "share of nats"], _losses([*own, whole], nats))
        for name, own in groups.items()
    ]
    if model.is_bound:
        tables.append("These are bounds: the perplexities are lower.")
    return _show(arguments, found, "\n\n".join(tables))


def _losses(groups: Sequence[Group], nats: float) -> list[list[str]]:
    return [
        [printable(x.name), f"{x.tokens:,}", f"{x.perplexity:,.2f}", f"{x.nats / nats:.1%}" if nats else "-"]
        for x in groups
    ]


def run_interchange(arguments: argparse.Namespace) -> int:
    """Print the three perplexities and the rank."""
    _before(arguments)
    model, vocabulary = load_words(arguments.folder, arguments.device)
    interchanged(model)  # refuses other families before the text is read
    text = _sentences(arguments.data, vocabulary)
    result = interchange(model, vocabulary.encode_all(text.sentences).sentences)
    config: Any = model.config
    found = {
        "num_states": config.num_states,
        "rank": config.rank,
        "perplexity_state_order": result.as_states.perplexity,
        "perplexity_rank_order": result.as_ranks.perplexity,
        "perplexity_hmm": result.as_hmm.perplexity,
        "largest_gap": result.gap,
        "transition": result.spectrum.summary(),
    }
    if arguments.plot is not None:
        from rankfold.plots.analyses import plot_spectra

        name = {"transition of ranks": result.spectrum}
        say(f"wrote {plot_spectra(name, arguments.plot, threshold=THRESHOLD)}")
    sizes = f"{config.num_states:,} states and rank {config.rank:,}"
    lines = [
        f"a rank-space HMM of {sizes} is an HMM of {config.rank:,} states",
        f"perplexity, states first      {result.as_states.perplexity:.4f}",
        f"perplexity, ranks first       {result.as_ranks.perplexity:.4f}",
        f"perplexity of the other HMM   {result.as_hmm.perplexity:.4f}",
        f"largest difference            {result.gap:.1e} nats a token",
        f"rank of its transition        {result.spectrum.rank():,} of at most {result.spectrum.bound:,}",
    ]
    return _show(arguments, found, "\n".join(lines))


def _before(arguments: argparse.Namespace) -> None:
    if arguments.plot is not None:
        expect_picture(arguments.plot)


def _sentences(data: str, vocabulary: Vocabulary, *, grammar: bool = False) -> Text:
    text = read_text(None if data == "-" else Path(data), vocabulary, ends=grammar)
    if not text.sentences:
        raise DataError(f"{text.where}: no sentence, but at least one was expected.")
    tell_unknown(text.sentences, vocabulary)
    return text


def _show(arguments: argparse.Namespace, found: dict[str, Any], text: str) -> int:
    print(to_json(found, indent=2) if arguments.json else text)
    return 0
