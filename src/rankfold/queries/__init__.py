"""What `model(words, lengths=...)` returns: the questions one asks of a batch, as methods of one object."""
