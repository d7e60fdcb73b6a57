"""Grammars in writing: text (`syntax`, `elaborate`, `text`), the JSON of the `fggs` package, drawings."""
