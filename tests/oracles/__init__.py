"""Expected values by enumeration, in plain Python."""
