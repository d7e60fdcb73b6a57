"""Frozen dataclass trees from TOML, strictly, and back.

Unknown keys, values of another type and numbers that are not finite are refused by name; nothing is guessed.
What `to_toml` writes, `build` reads back equal.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import math
import re
import tomllib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from rankfold.errors import DataError, DomainError, ShapeError, UnsupportedError
from rankfold.files import not_utf8, read_bytes

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Settings = TypeVar("Settings", bound="DataclassInstance")

# Bytes of a file of settings, and of a line or value: the parser takes 2.5 s for a key of 8,000 names, by its square.
LARGEST, LONGEST = 2**16, 2000
EXAMPLE = "--set model.rank=64"
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def build(cls: type[Settings], mapping: Mapping[str, Any], *, source: str | Path) -> Settings:
    """The settings in a parsed TOML or JSON file; `source` stands in front of every error.

    Fields are int, float, bool, str, `Literal` strings, tuples of one type, dataclasses, or one of these `| None`.
    A field may also be one of several dataclasses (`A | B`): see `choose`. A whole number is welcome as a float;
    nothing else is converted. A field that is not in the mapping takes its default.
    """
    return _build(cls, mapping, str(source), "")


def choose(classes: Sequence[type[Any]], mapping: Any, *, source: str | Path, key: str = "") -> type[Any]:
    """The one of several dataclasses that a table is for: its `family` is among that class's `Literal` choices.

    The first where the table names no family. `key` is the table's dotted name, for the error.
    """
    family = mapping.get("family") if isinstance(mapping, Mapping) else None
    if family is None:
        return classes[0]
    known = {name: cls for cls in classes for name in get_args(get_type_hints(cls)["family"])}
    if isinstance(family, str) and family in known:
        return known[family]
    where = f"{key}.family" if key else "family"
    raise _wrong(family, "one of " + ", ".join(known), str(source), where, hint=_nearest(str(family), known))


def to_mapping(settings: DataclassInstance) -> dict[str, Any]:
    """The settings as nested dictionaries of plain values: tuples are lists, None stays."""
    return {field.name: _plain(getattr(settings, field.name)) for field in _fields(settings)}


def to_toml(settings: DataclassInstance) -> str:
    """The settings as TOML that `build` reads back equal, floats to the last bit; None is left out.

    Not everything can be read back: a None where the default is another value, and infinity, raise.
    """
    return "".join(_table(settings, ""))


def read_toml(path: str | Path) -> dict[str, Any]:
    """The content of a TOML file; `DataError` with file and line if it is not one."""
    content = read_bytes(path, "a TOML file")
    if len(content) > LARGEST:
        raise DataError(f"{path}: has {len(content):,} bytes, but a file of settings at most {LARGEST:,}.")
    for number, line in enumerate(content.splitlines(), 1):
        if len(line) > LONGEST:
            raise DataError(f"{path}: line {number} has {len(line):,} bytes, but one of settings at most {LONGEST:,}.")
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        number, byte = not_utf8(content, error)
        remedy = "TOML files are UTF-8: save it in that encoding."
        raise DataError(f"{path}: line {number} holds the byte {byte}, which is not UTF-8.\n  {remedy}") from None
    except (ValueError, RecursionError) as error:  # besides bad TOML: numbers or tables without end
        raise DataError(f"{path}: not valid TOML: {error}.\n  Strings stand in double quotes, tables in [ ].") from None


def assign(mapping: dict[str, Any], argument: str) -> None:
    """Set one value of a nested dictionary, in place, from an argument such as `model.rank=64`.

    The right side is a TOML value, and where it is none a plain string: `model.family=lhmm` needs no quotes.
    """
    key, equals, text = argument.partition("=")
    names = key.strip().split(".")
    if not equals or not all(BARE_KEY.fullmatch(name) for name in names):
        raise DataError(f"{argument!r} is not of the form key=value, with dots between tables.\n  Example: {EXAMPLE}")
    for depth, name in enumerate(names[:-1], 1):
        mapping = mapping.setdefault(name, {})
        if not isinstance(mapping, dict):
            table = ".".join(names[:depth])
            raise DataError(f"{argument!r}: {table} is the value {mapping!r}, not a table.\n  Example: {EXAMPLE}")
    mapping[names[-1]] = _value(text.strip())


def differences(a: DataclassInstance, b: DataclassInstance) -> list[str]:
    """Each setting that is not the same in both, as `model.rank: 64 -> 128`; both are of one class."""
    assert type(a) is type(b), "settings of one class are compared"
    return list(_differences(to_mapping(a), to_mapping(b), ""))


def check_choices(settings: DataclassInstance) -> None:
    """Raise unless every `Literal` field holds one of its choices: for `__post_init__`, where Python callers pass."""
    for name, choices in _choices(type(settings)).items():
        value = getattr(settings, name, None)
        if value not in choices:
            raise DomainError(f"{name} is {value!r}, but must be one of {', '.join(choices)}.")


@functools.cache
def _choices(cls: type[DataclassInstance]) -> dict[str, tuple[str, ...]]:
    """The choices of each `Literal` field: hints are read from their text, which takes milliseconds."""
    hints = get_type_hints(cls).items()
    return {name: get_args(hint) for name, hint in hints if get_origin(hint) is Literal}


def _build(cls: type[Settings], mapping: Any, source: str, prefix: str) -> Settings:
    """One table and the tables in it; `prefix` is its dotted name and a dot, or empty."""
    if not isinstance(mapping, Mapping):
        raise _wrong(mapping, "a table", source, prefix.removesuffix(".") or "the whole")
    fields = {field.name: field for field in _fields(cls)}
    for key in mapping:
        if key not in fields:
            near = _nearest(str(key), fields, prefix)
            raise DataError(f"{source}: unknown key {prefix}{key}.\n  {near}")
    for name, field in fields.items():
        if name not in mapping and _default(field) is dataclasses.MISSING:
            raise DataError(f"{source}: {prefix}{name} is missing, and it has no default.")
    hints = get_type_hints(cls)
    values = {name: _convert(hints[name], value, source, prefix + name) for name, value in mapping.items()}
    try:
        return cls(**values)
    except (DataError, DomainError, ShapeError, UnsupportedError) as error:
        table = f"[{prefix.removesuffix('.')}] " if prefix else ""
        raise type(error)(f"{source}: {table}{error}") from None


def _convert(hint: Any, value: Any, source: str, key: str) -> Any:
    """A parsed value as the type of its field."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType) and len(arguments) == 2 and types.NoneType in arguments:
        (inner,) = (argument for argument in arguments if argument is not types.NoneType)
        return None if value is None else _convert(inner, value, source, key)
    if origin in (Union, types.UnionType) and all(dataclasses.is_dataclass(argument) for argument in arguments):
        chosen = choose(arguments, value, source=source, key=key)
        _expect_own(chosen, arguments, value, source, key)
        return _build(chosen, value, source, key + ".")
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        if not isinstance(value, list | tuple):
            raise _wrong(value, "a list", source, key)
        return tuple(_convert(arguments[0], item, source, f"{key}[{i}]") for i, item in enumerate(value))
    if origin is Literal:
        if isinstance(value, str) and value in arguments:
            return value
        raise _wrong(value, "one of " + ", ".join(arguments), source, key, hint=_nearest(str(value), arguments))
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _build(hint, value, source, key + ".")
    if hint not in SCALARS:
        raise UnsupportedError(f"{key} has the type {hint}, which settings cannot read; see `build` for those it can.")
    accepts, expected = SCALARS[hint]
    if not accepts(value):
        raise _wrong(value, expected, source, key)
    return hint(value)


def _expect_own(chosen: type[Any], classes: Sequence[type[Any]], table: Any, source: str, key: str) -> None:
    """Raise on a setting of another of several dataclasses, naming the families that have it."""
    own = [field.name for field in _fields(chosen)]
    for other in classes:
        for field in _fields(other):
            if field.name in own or not isinstance(table, Mapping) or field.name not in table:
                continue
            families = ", ".join(get_args(get_type_hints(other)["family"]))
            raise DataError(
                f"{source}: {key}.{field.name} is a setting of {families}, but {key}.family is "
                f"{table.get('family', _default(_fields(chosen)[0]))!r}.\n  Known here: {', '.join(own)}."
            )


def _is_float(value: Any) -> bool:
    """Whether a value is a finite number; a whole one that no float can hold is not."""
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:
        return False


def _is_text(value: Any) -> bool:
    """Whether a value is a string that UTF-8 can hold: bytes from a command line may come as half a character."""
    return type(value) is str and not any("\ud800" <= letter <= "\udfff" for letter in value)


# True is an int to Python, but never to us: hence types, not isinstance.
SCALARS: dict[Any, tuple[Callable[[Any], bool], str]] = {
    int: (lambda value: type(value) is int and -(2**63) <= value < 2**63, "a whole number"),
    float: (_is_float, "a finite number"),
    bool: (lambda value: type(value) is bool, "true or false"),
    str: (_is_text, "a string, in double quotes"),
}


def _wrong(value: Any, expected: str, source: str, key: str, *, hint: str = "") -> DataError:
    return DataError(f"{source}: {key} is {value!r}, but {expected} was expected." + (f"\n  {hint}" if hint else ""))


def _nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """The known name that is most like this one, or all of them."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {prefix}{near[0]}?" if near else f"Known here: {', '.join(known) or 'nothing'}."


def _fields(settings: Any) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(settings) if field.init]


def _default(field: dataclasses.Field[Any]) -> Any:
    """The default of a field; `MISSING` if it has none."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_mapping(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _table(settings: DataclassInstance, prefix: str) -> Iterator[str]:
    """Lines of one table, then those of the tables in it: TOML counts every later line to the last header."""
    tables: list[tuple[str, DataclassInstance]] = []
    for field in _fields(settings):
        value, key = getattr(settings, field.name), prefix + field.name
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            tables.append((key, value))
        elif value is not None:
            yield f"{field.name} = {_literal(value, key)}\n"
        elif _default(field) is not None:
            raise UnsupportedError(f"{key} is None, which TOML cannot say, and None is not its default.")
    for key, value in tables:
        yield f"\n[{key}]\n"
        yield from _table(value, key + ".")


def _literal(value: Any, key: str) -> str:
    """A value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        raise DomainError(f"{key} is {value}, but settings are finite.")
    if isinstance(value, int | float):
        return repr(value)  # the shortest text that reads as the same bits
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON may keep DEL, TOML may not
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_literal(item, f"{key}[{i}]") for i, item in enumerate(value)) + "]"
    raise UnsupportedError(f"{key} is {value!r}, which settings cannot write; see `build` for the types they can.")


def _value(text: str) -> Any:
    if len(text) > LONGEST:
        return text
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if len(parsed) == 1 else text  # a second line would be a second key


def _differences(a: Any, b: Any, key: str) -> Iterator[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        for name in dict.fromkeys([*a, *b]):  # a table of another class has other names: None on the side without it
            yield from _differences(a.get(name), b.get(name), f"{key}.{name}" if key else name)
    elif a != b:
        yield f"{key}: {a!r} -> {b!r}"
