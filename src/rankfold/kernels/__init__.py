"""Products that torch has no single call for, one folder each, with the plain torch version as reference."""
