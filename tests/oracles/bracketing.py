"""Unlabelled F1 as the published evaluation scripts compute it, from trees written in brackets with tags."""

import re


def spans(text: str) -> list[tuple[int, int]]:
    """The constituents, children before parents, end-exclusive; tags are not among them."""
    found, open_ones, position = [], [], 0
    for token in re.findall(r"\([^\s()]+ [^\s()]+\)|\([^\s()]+|\)", text):
        if token == ")":
            found.append((open_ones.pop(), position))
        elif token.endswith(")"):
            position += 1
        else:
            open_ones.append(position)
    return found


def f1_of_sets(predicted: set[tuple[int, int]], gold: set[tuple[int, int]]) -> float:
    """As in both scripts, the constants against division by zero left in."""
    overlap = predicted & gold
    precision = len(overlap) / (len(predicted) + 1e-8)
    recall = len(overlap) / (len(gold) + 1e-8)
    if len(gold) == 0:
        recall = 1.0
        if len(predicted) == 0:
            precision = 1.0
    return 2 * precision * recall / (precision + recall + 1e-8)


def uf1(predicted: str, gold: str) -> tuple[float, int, int, int]:
    """Sentence F1, and brackets found, wrong and missed, in the way of TN-PCFG."""
    length = max(end for _, end in spans(gold))
    lists = []
    for text in (predicted, gold):
        several = [span for span in spans(text) if span[0] + 1 != span[1]]
        lists.append([span for span in several if not (span[0] == 0 and span[1] == length)])
    ours, theirs = lists
    found = wrong = missed = 0
    for span in ours:
        if span in theirs:
            found += 1
        else:
            wrong += 1
    for span in theirs:
        if span not in ours:
            missed += 1
    return f1_of_sets(set(ours), set(theirs)), found, wrong, missed


def kim(predicted: str, gold: str) -> tuple[float, int, int, int, bool]:
    """The same in the way of Kim's scripts, and whether one of them passes over the sentence."""
    ours, theirs = (set([span for span in spans(text) if span[0] + 1 != span[1]][:-1]) for text in (predicted, gold))
    skipped = len(ours) == 0 or len(theirs) == 0
    return f1_of_sets(ours, theirs), len(ours & theirs), len(ours - theirs), len(theirs - ours), skipped


def corpus(found: int, wrong: int, missed: int) -> float:
    precision = found / (found + wrong) if found + wrong else 0.0
    recall = found / (found + missed) if found + missed else 0.0
    return 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0
