"""Forward and backward messages of a chain at once: each reading of the transition serves both.

Its twin in torch is the pair of loops in `recursions/chain_scaled.py`.
"""
