"""A model in a browser: one self-contained page, a local server for typed sentences, a widget for notebooks."""
