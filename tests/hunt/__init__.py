"""The hunt: random problems and damaged files, against oracles that share no code."""
