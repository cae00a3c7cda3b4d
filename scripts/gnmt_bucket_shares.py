"""How GNMT's training pairs fall into length buckets, from published logs.

    python scripts/gnmt_bucket_shares.py LOGS/v0.6/NVIDIA/dgx1_ngc19.05_pytorch/gnmt

WMT itself is not at hand everywhere; NVIDIA's v0.6 GNMT logs are. They train on pairs
of up to 75 sub-words in batches of one of five buckets, 15 wide, and print the speed of
every tenth batch: its time by its tokens/s is its tokens, which tell its bucket. Their
counts, and the pairs of up to 48 and 75 that Google's and NVIDIA's logs count, give the
distribution; between them it is interpolated (monotone cubic).
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import numpy as np
from scipy.interpolate import PchipInterpolator

BATCH = 256  # pairs a GPU, of the logs' run arguments
WIDTH, BUCKETS = 15, 5
# train_samples of Google's v0.7 logs (up to 48) and of these (up to 75).
UP_TO_48, UP_TO_75 = 3_442_299, 3_975_116
BOUNDS = (10, 20, 30, 40, 48)  # Google's buckets
LINE = re.compile(
    r"TRAIN \[\d+\]\[(\d+)/\d+\]\s+Time ([\d.]+) \([\d.]+\)\s+Data \S+ \(\S+\)\s+"
    r"Tok/s (\d+)"
)


def mean_lengths(folder: Path) -> list[float]:
    """Mean sub-words a side of each printed batch, the first one left out."""
    found = []
    for file in sorted(folder.glob("result_*.txt")):
        for step, seconds, speed in LINE.findall(file.read_text(errors="replace")):
            if int(step) > 0:
                found.append(float(seconds) * int(speed) / BATCH / 2)
    return found


def shares(lengths: list[float]) -> np.ndarray:
    """Of Google's buckets, adding up to 1."""
    # A batch of bucket k has mean lengths between k and k + 1 widths, less what the
    # shorter side of its pairs takes off: about a fifth.
    bucket = np.clip(np.ceil(np.array(lengths) * 1.25 / WIDTH) - 1, 0, BUCKETS - 1)
    counts = np.bincount(bucket.astype(int), minlength=BUCKETS)
    print(f"{len(lengths)} batches by bucket: {counts.tolist()}", file=sys.stderr)
    below = np.cumsum(counts) / counts.sum()
    known = {0: 0.0, 48: UP_TO_48 / UP_TO_75}
    known |= {WIDTH * (k + 1): float(below[k]) for k in range(BUCKETS)}
    at = sorted(known)
    curve = PchipInterpolator(at, [known[k] for k in at])
    return np.diff([0.0, *(curve(BOUNDS) / curve(BOUNDS[-1]))])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    lengths = mean_lengths(folder)
    if not lengths:
        sys.exit(f"{folder}: no result_*.txt with TRAIN lines")
    for bound, share in zip(BOUNDS, shares(lengths), strict=True):
        print(f"up to {bound}: {share:.3f}")


if __name__ == "__main__":
    main()
