"""Reading brackets: what is a tree, what is not, and where the mistake is."""

import gzip
from pathlib import Path

import pytest

from rankfold.data.brackets import expect_words, parse_tree, parse_trees, read_trees
from rankfold.errors import DataError

from .treebanks import TREEBANKS, needs_treebanks, records, text_of

PENN = """
( (S
    (NP-SBJ (NNP Ms.) (NNP Haag) )
    (VP (VBZ plays)
      (NP (-LRB- -LRB-) (NNP Elianti) (-RRB- -RRB-) ))
    (. .) ))
( (NP (NN end)) )
"""


def test_trees_over_lines_and_on_one_line_are_the_same() -> None:
    one_line = "(S (NP-SBJ (NNP Ms.) (NNP Haag)) (VP (VBZ plays) (NP (-LRB- -LRB-) (NNP Elianti) (-RRB- -RRB-))) (. .))"
    trees = parse_trees(PENN)
    assert [str(tree) for tree in trees] == [one_line, "(NP (NN end))"]
    assert parse_trees(f"{one_line}(NP(NN end))") == trees
    assert trees[0].words[3:6] == ["-LRB-", "Elianti", "-RRB-"]


def test_files_plain_and_gzipped(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.mrg", tmp_path / "a.mrg.gz"
    text = f"{PENN}\n(NN bare)"
    plain.write_text(text, encoding="utf-8")
    packed.write_bytes(gzip.compress(text.encode()))
    for path in (plain, packed):
        bank = read_trees(path)
        assert list(bank) == parse_trees(text)
        assert bank.lines == [2, 7, 9]
        assert bank.sentences[1:] == [["end"], ["bare"]]
        assert len(bank) == 3


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("(S (NN a))\n(S (NN a)", 2, "never ends: 1 brackets"),
        ("(S\n (NP (NN a)\n", 1, "never ends: 2 brackets"),
        ("(S (NN a)))", 1, "closing bracket too many"),
        ("\n( (S (NN a) )\n( (S (NN b)) )", 3, "without a label, inside the tree that starts in line 2"),
        ("()", 1, "an empty pair of brackets"),
        ("( )", 1, "an empty pair of brackets"),
        ("(())", 1, "an empty pair of brackets"),
        ("(S (NP) (NN a))", 1, "'NP' holds no words"),
        ("(NP\n)", 2, "'NP' holds no words"),
        ("(NN a) dog", 1, "'dog' stands outside"),
        ("# wsj\n(NN a)", 1, "'#' stands outside"),
        ("(NN f(x))", 1, r"bracket inside a word, at 'f\('"),
        ("(S (NN a)b)", 1, r"bracket inside a word, at '\)b'"),
        ("(-LRB- ()", 1, "an empty pair of brackets"),
        ("( (NN a) (NN b) )", 1, "around 2 trees"),
        ("( (NN a) b )", 1, "'b' in the outermost bracket"),
        ("(S ((NN a)))", 1, "without a label"),
    ],
)
def test_mistakes_are_named_with_file_and_line(text: str, line: int, says: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.mrg"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=rf"bad\.mrg, line {line}: .*{says}"):
        read_trees(path)
    with pytest.raises(DataError, match=rf"text, line {line}: .*{says}"):
        parse_trees(text)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    cases = {
        "empty.mrg": (b"\n \n", "holds no tree"),
        "bom.mrg": (b"\xef\xbb\xbf(NN a)", "byte order mark"),
        "packed.mrg": (gzip.compress(b"(NN a)"), "gzip data"),
        "latin.mrg": (b"(NN a)\n(NN caf\xe9)", "line 2: byte 8 is 0xe9: not UTF-8"),
        "cut.mrg.gz": (gzip.compress(b"(NN a)" * 999)[:-9], "damaged or ends early"),
    }
    for name, (content, says) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=says):
            read_trees(tmp_path / name)
    with pytest.raises(DataError, match="a folder"):
        read_trees(tmp_path)
    with pytest.raises(DataError, match="missing"):
        read_trees(tmp_path / "absent")


def test_one_tree_means_one() -> None:
    with pytest.raises(DataError, match="holds 2"):
        parse_tree("(NN a) (NN b)")
    with pytest.raises(DataError, match="holds 0"):
        parse_tree(" ")


def test_trees_and_text_must_agree_word_by_word() -> None:
    trees = parse_trees("(S (NN a) (NN b)) (NN c)")
    expect_words(trees, [["a", "b"], ("c",)])
    for sentences, says in (
        ([["a", "b"], ["d"]], "sentence 2: word 1 is 'c' in the tree, but 'd' in the text"),
        ([["a"], ["c"]], "sentence 1: word 2 is 'b' in the tree, but at its end in the text"),
        ([["a", "b", "x"], ["c"]], "sentence 1: word 3 is at its end in the tree, but 'x'"),
        ([["a", "b"]], "2 trees, but 1 sentences"),
    ):
        with pytest.raises(DataError, match=says):
            expect_words(trees, sentences)


@needs_treebanks
@pytest.mark.parametrize("name", ["ptb-sample.test", "cess-esp.test"])
def test_real_trees_have_the_words_tags_and_spans_of_their_records(name: str) -> None:
    bank = read_trees(TREEBANKS / f"{name}.trees.txt.gz")
    expected = records(f"{name}.jsonl.gz")
    expect_words(bank, [record["words"] for record in expected])
    assert [str(tree) for tree in bank] == text_of(f"{name}.trees.txt.gz").splitlines()
    for tree, record in zip(bank, expected, strict=True):
        assert tree.tags == record["tags"]
        assert [list(span) for span in tree.spans() if span.end - span.start > 1] == record["spans"]
