"""JSON of every command: read by strict readers too."""

import json
import math

from rankfold.cli.output import to_json


def test_numbers_that_are_none_become_null() -> None:
    value = {"a": math.inf, "b": [1.5, -math.inf, {"c": math.nan}], "d": (1, "x", None, True)}
    assert json.loads(to_json(value)) == {"a": None, "b": [1.5, None, {"c": None}], "d": [1, "x", None, True]}
    assert to_json({"a": 1}, indent=2) == '{\n  "a": 1\n}'
