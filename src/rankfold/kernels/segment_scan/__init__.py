"""One pass over the frames of a semi-Markov chain in a single launch: `triton.scan`.

`team.scan` divides the states of a sequence among several programs. `uses` adds up what segments of all ages weigh.
Its twin in torch, call by call, is `recursions/segments/sweep.py`.
"""

# Above this many entries per frame (window, durations, maps) the single multiprocessor of a sequence is slower than the
# calls it saves. H200, 2026-11-16, `python -m benchmarks steps --table frames`: it does 5,000 to 70,000 entries,
# some 2 per ns; calls take 60 us per frame at 8,192 states captured, several times that from Python: this lies between.
LARGEST = 2**18
LONGEST = 1024  # ages of a tile of the window
WIDEST = 128  # states and ranks of a block
# Entries of a window, durations times states, from which several programs share a sequence, and posteriors of all
# durations take a few launches: `team`, `uses`. H200, 2026-11-19, `python -m benchmarks gpu`: 5 states and durations to
# 60, the smallest measured, take 0.91 of the time, larger windows 0.02 to 0.79 of it.
SHARED_FROM: int | None = 300


def shared(num_ages: int, num_states: int) -> bool:
    """Whether several programs share a sequence with such a window."""
    return SHARED_FROM is not None and num_ages * num_states >= SHARED_FROM
