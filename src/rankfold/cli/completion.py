"""`rankfold completion`: a script that lets a shell complete commands, options, their choices and recipes.

The script holds everything: pressing Tab starts no Python. It is made of a table, `completion.json`, which is made of
the commands' parsers by `python -m rankfold.cli.completion` (a test holds it to them): those import torch, this does
not.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple

Shell = Literal["bash", "zsh", "fish"]
Kind = Literal["flag", "word", "choice", "file", "folder", "recipe"]
TABLE = "completion.json"
COMPUTES = False
DESCRIPTION = (
    "Print a script with which a shell completes commands, options, their choices and the names of recipes. "
    "bash: source it, or put it into ~/.local/share/bash-completion/completions/rankfold; zsh: into a file _rankfold "
    "of a folder in $fpath; fish: into ~/.config/fish/completions/rankfold.fish."
)
EXAMPLE = """\
example:
  rankfold completion bash > ~/.local/share/bash-completion/completions/rankfold
  rankfold completion zsh > ~/.zfunc/_rankfold
  rankfold completion fish > ~/.config/fish/completions/rankfold.fish"""


class Argument(NamedTuple):
    """An option, or (no names) an argument that goes by its place: what its values are."""

    names: list[str]
    kind: Kind
    help: str
    choices: list[str]
    many: bool = False  # takes several values


Table = dict[str, tuple[str, list[Argument]]]  # of "train" or "data get": its help, and its arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish")


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    print(script(arguments.shell), end="")
    return 0


def script(shell: Shell) -> str:
    """The script for a shell."""
    makers = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    return "\n".join(makers[shell](read_table(), recipe_names())) + "\n"


def read_table() -> Table:
    """The table of the commands."""
    content = json.loads((files("rankfold.cli") / TABLE).read_text())
    return {name: (text, [Argument(*row) for row in rows]) for name, (text, rows) in content.items()}


def recipe_names() -> list[str]:
    """The recipes of `rankfold train --list`: files of their own, without the rows of the papers' tables."""
    folder = files("rankfold") / "recipes"
    names = (file.name for file in folder.iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml") and name != "papers.toml")


def build_table() -> Table:
    """The table, made of the parsers of all commands; it imports all of them."""
    from rankfold.cli import build_parser

    found: Table = {}
    for name, text, parser in _subcommands(build_parser()):
        parser.load()
        actions = list(_subcommands(parser))
        found[name] = text, [] if actions else list(_arguments(parser))
        found |= {f"{name} {action}": (about, list(_arguments(inner))) for action, about, inner in actions}
    return found


def _subcommands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, Any]]:
    """Name, help and parser of each subcommand."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            texts = {choice.dest: choice.help or "" for choice in action._choices_actions}
            yield from ((name, texts.get(name, ""), inner) for name, inner in action.choices.items())


def _arguments(parser: argparse.ArgumentParser) -> Iterator[Argument]:
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        choices = list(map(str, action.choices or ()))
        many = action.nargs in ("+", "*")
        text = " ".join((action.help or "").replace("%%", "%").split())
        yield Argument(list(action.option_strings), _kind(action, choices), text, choices, many)


def _kind(action: argparse.Action, choices: list[str]) -> Kind:
    if action.nargs == 0:
        return "flag"
    if choices:
        return "choice"
    metavar = str(action.metavar or "")
    if "RECIPE" in metavar or "--recipe" in action.option_strings:
        return "recipe"
    if metavar in ("RUN", "DIR", "FOLDER"):
        return "folder"
    return "file" if action.type is Path or metavar.endswith(("FILE", "SVG", "TREES")) else "word"


def _values(argument: Argument, recipes: list[str]) -> tuple[list[str], bool, bool]:
    """What may stand there: words, and whether files and folders."""
    words = recipes if argument.kind == "recipe" else argument.choices
    return words, argument.kind in ("file", "recipe"), argument.kind in ("file", "folder", "recipe")


def _bash(table: Table, recipes: list[str]) -> list[str]:
    lines = [
        "# Completion of rankfold for bash. Made by: rankfold completion bash",
        "_rankfold() {",
        "    local current=${COMP_WORDS[COMP_CWORD]} command= option= word i words= files= folders=",
        "    for ((i = 1; i < COMP_CWORD; i++)); do",
        "        word=${COMP_WORDS[i]}",
        '        case "$word" in',
        "            -*) option=$word; continue ;;",
        "        esac",
        '        if [ -z "$command" ]; then command=$word; option=',
    ]
    for name in (name for name in table if any(other.startswith(f"{name} ") for other in table)):
        lines.append(f'        elif [ "$command" = {name} ]; then command="{name} $word"; option=')
    lines += [
        '        elif [ $((i + 1)) -lt "$COMP_CWORD" ]; then',
        '            case "$command $option" in',
        f"                {_many(table)}) ;;",
        "                *) option= ;;",
        "            esac",
        "        fi",
        "    done",
        '    if [ "${current#-}" != "$current" ]; then option=',
        '    elif [ "${COMP_WORDS[COMP_CWORD-1]}" != "$option" ]; then',
        '        case "$command $option" in',
        f"            {_many(table)}) ;;",
        "            *) option= ;;",
        "        esac",
        "    fi",
        '    case "$command $option" in',
    ]
    for command, (_, rows) in table.items():
        for row in rows:
            if row.names and row.kind != "flag":
                pattern = "|".join(shlex.quote(f"{command} {name}") for name in row.names)
                lines.append(f"        {pattern}) {_bash_values(*_values(row, recipes))} ;;")
    lines += ["        *)", '            case "$command" in', f"                '') words={_quoted(_top(table))} ;;"]
    for command, (_, rows) in table.items():
        actions = [name.split()[1] for name in table if name.startswith(f"{command} ")]
        options = [name for row in rows for name in row.names]
        values = [_values(row, recipes) for row in rows if not row.names]
        words = [*actions, *options, *(word for found, _, _ in values for word in found)]
        assigned = _bash_values(words, any(x for _, x, _ in values), any(x for _, _, x in values))
        lines.append(f"                {shlex.quote(command)}) {assigned} ;;")
    return [
        *lines,
        "            esac ;;",
        "    esac",
        "    COMPREPLY=()",
        '    case "$current" in',
        "        -*) files= folders= ;;",
        "    esac",
        '    while IFS= read -r word; do COMPREPLY+=("$word"); done < <(',
        '        compgen -W "$words" -- "$current"',
        '        if [ -n "$files" ]; then compgen -f -- "$current"',
        '        elif [ -n "$folders" ]; then compgen -d -- "$current"; fi',
        "    )",
        '    if [ -n "$files$folders" ] && [ -z "$words" ]; then compopt -o filenames 2> /dev/null; fi',
        "}",
        "complete -F _rankfold rankfold",
    ]


def _many(table: Table) -> str:
    """A pattern of the options that take several values."""
    found = [
        f"{command} {name}" for command, (_, rows) in table.items() for row in rows for name in row.names if row.many
    ]
    return "|".join(map(shlex.quote, found))


def _top(table: Table) -> list[str]:
    return [*(name for name in table if " " not in name), "--help", "--version"]


def _quoted(words: list[str]) -> str:
    return shlex.quote(" ".join(words))


def _bash_values(words: list[str], takes_files: bool, takes_folders: bool) -> str:
    return f"words={_quoted(words)} files={'1' if takes_files else ''} folders={'1' if takes_folders else ''}"


def _zsh(table: Table, recipes: list[str]) -> list[str]:
    lines = ["#compdef rankfold", "# Completion of rankfold for zsh. Made by: rankfold completion zsh"]
    lines.append(f"_rankfold_recipes() {{ _alternative 'names:recipe:({' '.join(recipes)})' 'files:file:_files' }}")
    lines.append("_rankfold() {")
    lines += ["    local -a commands", "    commands=("]
    lines += [f"        {shlex.quote(f'{name}:{text}')}" for name, (text, _) in table.items() if " " not in name]
    lines += [
        "    )",
        "    if (( CURRENT == 2 )); then _describe command commands; return; fi",
        "    local command=$words[2]",
    ]
    lines += ["    shift words; (( CURRENT-- ))", '    case "$command" in']
    for command, (_, rows) in table.items():
        if " " in command:
            continue
        actions = {name.split()[1]: found for name, found in table.items() if name.startswith(f"{command} ")}
        lines.append(f"        {command})")
        if actions:
            named = " ".join(shlex.quote(f"{name}:{text}") for name, (text, _) in actions.items())
            lines += [
                f"            local -a actions=({named})",
                "            if (( CURRENT == 2 )); then _describe action actions; return; fi",
                "            local action=$words[2]",
                "            shift words; (( CURRENT-- ))",
                '            case "$action" in',
            ]
            lines += [f"                {name}) {_zsh_arguments(inner)} ;;" for name, (_, inner) in actions.items()]
            lines.append("            esac ;;")
        else:
            lines.append(f"            {_zsh_arguments(rows)} ;;")
    return [
        *lines,
        "    esac",
        "}",
        'if [ "$funcstack[1]" = _rankfold ]; then _rankfold "$@"; else compdef _rankfold rankfold; fi',
    ]


def _zsh_arguments(rows: list[Argument]) -> str:
    specs = []
    for row in rows:
        text = row.help.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")
        values = "" if row.kind == "flag" else f":{row.kind}:{_zsh_values(row)}"
        if not row.names:
            specs.append(f"{'*' if row.many else ''}{values or ':word:'}")
        specs += [f"*{name}[{text}]{values}" for name in row.names]
    return "_arguments " + " ".join(map(shlex.quote, specs))


def _zsh_values(row: Argument) -> str:
    actions = {"recipe": "_rankfold_recipes", "file": "_files", "folder": "_files -/"}
    return f"({' '.join(row.choices)})" if row.choices else actions.get(row.kind, "")


def _fish(table: Table, recipes: list[str]) -> list[str]:
    lines = ["# Completion of rankfold for fish. Made by: rankfold completion fish", "complete -c rankfold -f"]
    top = [name for name in table if " " not in name]
    for name in top:
        text = shlex.quote(table[name][0])
        lines.append(f"complete -c rankfold -n __fish_use_subcommand -a {name} -d {text}")
    for command, (_, rows) in table.items():
        first, _, action = command.partition(" ")
        seen = f"__fish_seen_subcommand_from {first}" + (
            f"; and __fish_seen_subcommand_from {action}" if action else ""
        )
        actions = [name.split()[1] for name in table if name.startswith(f"{command} ")]
        for name in actions:
            free = f"{seen}; and not __fish_seen_subcommand_from {' '.join(actions)}"
            about = shlex.quote(table[f"{command} {name}"][0])
            lines.append(f"complete -c rankfold -n {shlex.quote(free)} -a {name} -d {about}")
        for row in rows:
            words, takes_files, takes_folders = _values(row, recipes)
            parts = ["complete -c rankfold", f"-n {shlex.quote(seen)}"]
            parts += [f"-{'l' if name.startswith('--') else 's'} {name.lstrip('-')}" for name in row.names]
            parts += [f"-a {shlex.quote(' '.join(words))}"] if words else []
            parts += ["-F"] if takes_files or takes_folders else []
            parts += [] if not row.names or row.kind == "flag" else ["-r"] if takes_folders else ["-x"]
            parts += [f"-d {shlex.quote(row.help)}"] if row.names else []
            if row.names or words or takes_files or takes_folders:
                lines.append(" ".join(parts))
    return lines


if __name__ == "__main__":
    lines = (f"{json.dumps(name)}: {json.dumps([text, rows])}" for name, (text, rows) in build_table().items())
    Path(__file__).with_name(TABLE).write_text("{\n" + ",\n".join(lines) + "\n}\n")
