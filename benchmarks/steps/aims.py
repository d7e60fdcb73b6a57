"""What is aimed at: times of gradient steps on an H200, and how many times as fast as the peer a step is to be."""

from __future__ import annotations

# In ms, at most: by the beginning of the row's name, size, precision.
ON_H200: dict[tuple[str, str, str], float] = {
    ("spcfg, 4,096 ", "16 x 40", "tf32"): 20,
    ("spcfg, 4,096 ", "16 x 40", "bf16"): 12,
    ("rankpcfg, 4,500 ", "16 x 40", "tf32"): 12,
    ("rankpcfg, 4,500 ", "16 x 40", "bf16"): 9,
    ("tnpcfg, 250 ", "4 x 40", "tf32"): 3.5,
    ("npcfg, 30 ", "4 x 40", "tf32"): 4,
    ("npcfg, 100 ", "4 x 40", "tf32"): 10,
    ("lpcfg, 100 ", "4 x 40", "tf32"): 8,
    ("hsmm, 64 states", "1 x 200", "tf32"): 1.5,
    ("lhsmm, 128 states", "1 x 200", "tf32"): 3,
    ("lhsmm, 1,024 states", "1 x 200", "tf32"): 4,
    ("lhsmm, 8,192 states", "1 x 200", "tf32"): 8,
    ("hsmm, 24 states, durations to 1,000", "1 x 10,000", "float32"): 400,
    ("dense chain, 15 states", "64 x 500", "float32"): 4,
    ("dense chain, 15 states", "1 x 100,000", "float32"): 30,
    ("dense chain, 15 states", "1 x 500,000", "float32"): 150,
}
# How many times as fast as the peer, at least: by what a row's name holds; the first that fits.
OVER_PEERS = {
    "64 states, EM step": 5.0,
    "states, EM step": 1.5,
    "as a grammar of one's own, 30 / 60": 1 / 5,
}


def aimed_ms(on: str, name: str, size: str, precision: str, peer_ms: float | None) -> float | None:
    """The time a row is to take at most, its peer's where nothing else is aimed at; None where there is no peer."""
    if on == "GPU":
        for (begin, *rest), ms in ON_H200.items():
            if name.startswith(begin) and rest == [size, precision]:
                return ms
    if peer_ms is None:
        return None
    return peer_ms / next((least for part, least in OVER_PEERS.items() if part in name), 1.0)
