"""Forward and backward messages of a chain at once: each reading of the transition serves both.

Its twin in torch is the pair of loops in `recursions/chain_scaled.py`.
"""

FEW = 64  # sequences up to which a step takes as long as reading its transition
LONGEST = 4096  # positions whose numbers one program holds in registers
