"""Modules that own parameters and emit distributions and operators. They know nothing of recursions."""
