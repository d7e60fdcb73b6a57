"""One pass over the frames of a semi-Markov chain in a single launch: `triton.scan`.

Its twin in torch, call by call, is `recursions/semi_markov_sweep.py`.
"""

# Above this many entries a frame (window, durations, maps) the single multiprocessor that a sequence has should be
# slower than the calls it saves. Reckoned, not measured: 27 entries a ns for it, 30 to 40 us for ten captured calls.
LARGEST = 2**20
LONGEST = 1024  # ages of a tile of the window
WIDEST = 128  # states and ranks of a block
