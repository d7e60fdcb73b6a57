"""Mutations of text: bytes, JSON, TOML. Pure functions of a generator and what is there.

Each takes a `random.Random` and content that is valid, and gives content that may not be.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Sequence
from random import Random
from typing import Any

MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\0", b"\x1f\x8b", b"PK\x03\x04", b"\x80", b"\xff", b"\xc3", b"\xed\xa0\x80")
SIGNS = ("\u2028", "\u0085", "\ufeff", "\u3000", "\u00a0", "\x1c", "\x0b", "\x0c", "\u0661", "e\u0301", "\U0001f600")
TOKENS = ("<eos>", "<unk>", "(", ")", "()", "\t", " ", "\n", "\r", "\r\n", '"', "'", "`", ",", "{", "}", "[", "]", "=")
NUMBERS = ("0", "-1", "1", "2", "-0.0", "1e400", "1e308", "1e-320", "nan", "-inf", "9" * 19, "9" * 400, "1_0", "0x1f")
LONG = 1_000_001  # bytes: one more than a line of text may have


def bytes_of(rng: Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """A few changes that know nothing of the format."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = _one_change(rng, data, others)
    return data


def _one_change(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    to = min(len(data), at + rng.choice((1, 1, 2, 8, rng.randrange(1, len(data) + 2))))
    kind = rng.randrange(14)
    if kind == 0 and data:  # one bit
        place = min(at, len(data) - 1)
        return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]
    if kind == 1:  # other bytes
        return data[:at] + bytes(rng.randrange(256) for _ in range(to - at)) + data[to:]
    if kind == 2:
        return data[:at] + data[to:]
    if kind == 3:
        return data[:at]
    if kind == 4:
        return data[:to] + data[at:to] * rng.choice((1, 1, 5)) + data[to:]
    if kind == 5 and others:  # the beginning of one file, the end of another
        other = rng.choice(others)
        return data[:at] + other[rng.randrange(len(other) + 1) :]
    if kind == 6:
        return data[:at] + rng.choice(MARKS) + data[at:]
    if kind == 7:
        return data[:at] + rng.choice(SIGNS + TOKENS).encode() + data[at:]
    if kind == 8:
        return rng.choice(MARKS) + data
    if kind == 9:
        return data.replace(b"\n", rng.choice((b"\r\n", b"\r", b"\n\n", b" ", b"\n\r\n", b"\0")))
    if kind == 10:
        found = list(re.finditer(rb"-?[0-9]+(\.[0-9]+)?", data))
        if found:
            number = rng.choice(found)
            return data[: number.start()] + rng.choice(NUMBERS).encode() + data[number.end() :]
    if kind == 11 and rng.random() < 0.2:  # a line without an end
        return data[:at] + rng.choice((b"a", b"(", b" ", b"[", b"-", b"\xc3\xa9")) * LONG + data[at:]
    if kind == 12:
        text = data.decode("utf-8", "replace")
        return text.encode(rng.choice(("utf-16", "utf-32", "utf-8-sig", "latin-1")), "replace")
    if kind == 13 and rng.random() < 0.3:
        return rng.choice((b"", b"\n", b" \n \n", b"\0" * 64, b"\n" * 1000))
    words = data.split(b" ")
    rng.shuffle(words)
    return b" ".join(words)


def json_bytes(rng: Random, content: Any, others: Sequence[Any] = ()) -> bytes:
    """The text of a changed JSON value; sometimes one that JSON itself does not allow."""
    content = copy.deepcopy(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        content = json_value(rng, content, others)
    text = json.dumps(content, ensure_ascii=rng.random() < 0.9)
    kind = rng.randrange(24)
    if kind == 0:  # nested without end
        depth = rng.choice((500, 5000, 100_000))
        opened = rng.choice(("[", '{"a":'))
        inner = opened * depth + ("" if rng.random() < 0.5 else "1" + ("]" if opened == "[" else "}") * depth)
        spots = [m.start() for m in re.finditer(r"(?<=: )[^ ]", text)] or [0]
        spot = rng.choice(spots)
        text = text[:spot] + inner + ("," if rng.random() < 0.5 else "") + text[spot:]
    elif kind == 1:
        text = text.replace(",", rng.choice((",,", ";", ", ,")), 1)
    elif kind == 2:
        text = text.replace("{", '{"a": 1, "a": 2, ', 1)
    elif kind == 3:
        text = text[: rng.randrange(len(text) + 1)]
    elif kind == 4:  # whole numbers that Python refuses to read, or that no float holds
        text = re.sub(r"(?<=[ \[])[0-9]+", lambda _: "9" * rng.choice((19, 400, 5000)), text, count=rng.randrange(1, 3))
    return text.encode("utf-8", "surrogatepass")


def json_value(rng: Random, content: Any, others: Sequence[Any] = ()) -> Any:
    """A JSON value with one thing changed, at a place chosen by walking down."""
    paths = list(_paths(content))
    holder, key = rng.choice(paths) if paths else (None, None)
    if holder is None or rng.random() < 0.02:
        return _strange(rng)
    kind = rng.randrange(10)
    if kind < 4:
        holder[key] = _strange(rng)
    elif kind < 6:
        holder[key] = _near(rng, holder[key])
    elif kind == 6:
        del holder[key]
    elif kind == 7 and isinstance(holder, dict):
        holder[rng.choice((str(key) + "x", "", "a", str(key).upper()))] = copy.deepcopy(holder[key])
        if rng.random() < 0.5:
            del holder[key]
    elif kind == 7:
        holder.insert(key, copy.deepcopy(holder[key]))
    else:  # what is somewhere else, here or in another file
        source = rng.choice([content, *others])
        places = list(_paths(source))
        if places:
            other, place = rng.choice(places)
            holder[key] = copy.deepcopy(other[place])
    return content


def _paths(content: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    pending = [content]
    while pending:
        holder = pending.pop()
        items = holder.items() if isinstance(holder, dict) else enumerate(holder) if isinstance(holder, list) else ()
        for key, value in items:
            found.append((holder, key))
            if isinstance(value, dict | list):
                pending.append(value)
    return found


def _strange(rng: Random) -> Any:
    """A value that is rarely what was expected."""
    whole = (0, -1, 1, 2, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 10**30, 10**9, 50_000_000)
    floats = (0.5, -0.0, 1e308, 5e-324, float("nan"), float("inf"), float("-inf"), 1.0, -3.7, 1e20)
    texts = (
        "",
        "a",
        "\0",
        "\ud800",
        "nan",
        "1",
        "../x",
        "/etc/passwd",
        "<eos>",
        " ",
        "\n",
        "a" * 300,
        "e\u0301",
        "\u0661",
    )
    nested: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"a": {}}, [1, "a"], {"": []}, [[1], [1, 2]])
    return copy.deepcopy(rng.choice((rng.choice(whole), rng.choice(floats), rng.choice(texts), rng.choice(nested))))


def _near(rng: Random, value: Any) -> Any:
    """A value like another."""
    if isinstance(value, bool) or value is None:
        return rng.choice((not value, int(bool(value)), str(value)))
    if isinstance(value, int | float):
        with_limits = (-value, value + 1, value - 1, value * 2, value * 10**6, value / 2, float(value), str(value))
        return rng.choice((*with_limits, [value], value * 2**31, bool(value)))
    if isinstance(value, str):
        at = rng.randrange(len(value) + 1)
        return rng.choice((value + "x", value[:at], value[:at] + "\0" + value[at:], value.upper(), [value], value * 2))
    if isinstance(value, list):
        return rng.choice((value[:-1], value[1:], value + value, value[::-1], {str(i): x for i, x in enumerate(value)}))
    if isinstance(value, dict):
        return rng.choice(
            (list(value.items()), list(value), dict(list(value.items())[:-1]), dict(reversed(value.items())))
        )
    return value


TOML_VALUES = (
    *("nan", "inf", "-inf", "-1", "0", "1", "1e400", "9" * 30, "0x7fffffffffffffffff", "1_000", "01", "true", '""'),
    *('"a"', "'a'", "[]", "{}", "[1, 2]", '["a"]', "{a = 1}", "1979-05-27", "07:32:00", '"""', "'''", "", "\0", "é"),
    *('"\\ud800"', '"\\u0000"', "9999999", "9223372036854775807", "-9223372036854775808", "1e308", "5e-324", "0.5"),
)


def toml_bytes(rng: Random, text: str) -> bytes:
    """A TOML text with lines changed."""
    lines = text.splitlines()
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(lines)) if lines else 0
        kind = rng.randrange(9)
        key = lines[at].partition("=")[0].strip() if lines else ""
        if kind < 4 and lines and "=" in lines[at]:
            lines[at] = f"{key} = {rng.choice(TOML_VALUES)}"
        elif kind == 4 and lines:
            lines.insert(rng.randrange(len(lines)), lines[at])
        elif kind == 5 and lines:
            del lines[at]
        elif kind == 6:
            names = (
                "[model]",
                "[data]",
                "[[train]]",
                "[model.a]",
                "[]",
                "base = 'small-lhmm'",
                'base = "nobody"',
                "[a",
            )
            lines.insert(at, rng.choice(names))
        elif kind == 7:
            depth = rng.choice((100, 1000, 10_000, 100_000))
            lines.insert(
                at, rng.choice(("a = " + "[" * depth, "[" + ".".join("a" * depth) + "]", "a" + ".b" * depth + "=1"))
            )
        elif lines:
            lines[at] = lines[at] + rng.choice((" x", " # é", "\t=", "\0", "\r", '"', " = 2"))
    return "\n".join(lines).encode()
