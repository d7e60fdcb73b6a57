"""What the site has beyond the pages of docs: files of the repository that pages link to, and the help of every
command. When the site is built, its pages are searched for anything fetched from another host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}  # of the repository, and of the site
EXAMPLES = "examples/"
COMMANDS = "<!-- help of every command -->"
FETCHED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio)\b[^>]*\bsrc=["']?(?:https?:)?//[^>]*>"""
    r"""|<link\b(?![^>]*\brel=["']?canonical)[^>]*\bhref=["']?(?:https?:)?//[^>]*>"""
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and examples that lie outside of docs."""
    for source, name in PAGES.items():
        text = (ROOT / source).read_text().replace("](docs/", "](")
        for other, target in PAGES.items():
            text = text.replace(f"]({other}", f"]({target}")
        files.append(File.generated(config, name, content=text))
    for path in sorted((ROOT / EXAMPLES).glob("*.py")):
        files.append(File.generated(config, EXAMPLES + path.name, content=path.read_text()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to files outside of docs lead to their copies in the site; the page of commands gets their help."""
    for source, target in {**PAGES, EXAMPLES: EXAMPLES}.items():
        markdown = re.sub(rf"\]\(((?:\.\./)*)\.\./{re.escape(source)}", rf"](\1{target}", markdown)
    return markdown.replace(COMMANDS, help_of_commands()) if COMMANDS in markdown else markdown


def help_of_commands() -> str:
    """The help of every command, as Markdown."""
    summary = help_of()
    names = re.findall(r"^    (\w[\w-]*)(?: |$)", summary, re.MULTILINE)
    return f"```text\n{summary}```\n\n" + "\n\n".join(f"## {name}\n\n```text\n{help_of(name)}```" for name in names)


def help_of(*command: str) -> str:
    """What `rankfold COMMAND --help` prints."""
    paths = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "COLUMNS": "100", "PYTHONPATH": paths}
    words = [sys.executable, "-m", "rankfold", *command, "--help"]
    return subprocess.run(words, check=True, capture_output=True, text=True, env=environment).stdout


def on_post_build(config: MkDocsConfig) -> None:
    """Stop if a page fetches anything from another host."""
    site = Path(config.site_dir)
    fetched = [f"{page.relative_to(site)}: {tag}" for page in site.rglob("*.html") for tag in fetches(page.read_text())]
    if fetched:
        raise PluginError("pages that fetch something from another host:\n" + "\n".join(fetched))


def fetches(html: str) -> list[str]:
    """The elements of a page that make a browser ask another host."""
    return FETCHED.findall(html)
