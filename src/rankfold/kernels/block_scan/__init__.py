"""Chains of small blocks in one launch for all positions.

Its twin in torch is the pair of loops in `recursions/blocks/steps.py`.
"""

LARGEST = 256  # states of a block whose table one program holds
