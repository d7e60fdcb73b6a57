"""Data: texts, treebanks and recordings, read from files, validated, and cut into batches."""
