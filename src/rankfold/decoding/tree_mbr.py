"""Trees of least expected error: the brackets that are most probable in sum.

Not the most probable tree (`decoding/tree_best.py`), which a grammar of thousands of symbols does not give away; and
better by the measure that trees are judged by. Read next: `recursions/tree/best.py`.
"""

from __future__ import annotations

from rankfold.decoding.tree_records import ParsedTree
from rankfold.decoding.trees import leaf_posterior, span_posterior
from rankfold.recursions.tree.best import best_brackets, best_labels
from rankfold.recursions.tree.potentials import TreePotentials, validate


def mbr_tree(p: TreePotentials, *, labels: bool = False) -> list[ParsedTree]:
    """For each sentence the binary tree with the most correct brackets to be expected, which is its `score`.

        argmax_tree  sum_{(i, j) in tree} p(bracket i, j | words)

    With `labels`, brackets that are right only with their label: p(i, j, label | words), and for each word its most
    probable symbol (`tags`). Labels are symbols of the rules that are given: for those of a grammar in rank space give
    the rules over states, which are the same distribution, exact but by 3 n r a span in place of 2 r^2.
    Cost: an inside and an outside pass, and t^3 / 6 additions. Source: Goodman 1996.
    """
    f = validate(p).detach()
    lengths = f.lengths.tolist()
    if not labels:
        posterior = span_posterior(f)
        possible = (posterior.sum((1, 2)) > 0).tolist()
        spans, sums = best_brackets(posterior.double(), lengths)
        return [
            ParsedTree(found, score=total) if can else ParsedTree([])
            for found, total, can in zip(spans, sums, possible, strict=True)
        ]
    best = best_labels(f)
    words = leaf_posterior(f)
    tags, seen = words.argmax(-1).tolist(), (words.sum((1, 2)) > 0).tolist()
    spans, sums = best_brackets(best.posterior, lengths)
    names = best.label.tolist()
    return [
        ParsedTree(found, [names[b][i][j] for i, j in found], tags[b][:length], total) if can else ParsedTree([])
        for b, (found, total, length, can) in enumerate(zip(spans, sums, lengths, seen, strict=True))
    ]
