"""Corpora: pieces of text or recordings answered by one worker, by several processes, or by the actors of Ray Data."""
