"""Makes mlperf_tpu/pod/published.json: Google's TPU v3 results of MLPerf v0.6 and v0.7.

    python scripts/published_results.py google_results.json

The input is what was read from the submitted logs, one entry a system and benchmark.
"""

from __future__ import annotations

import json
import statistics
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

OUT = Path(__file__).parents[1] / "mlperf_tpu" / "pod" / "published.json"


def main() -> None:
    entries = json.loads(Path(sys.argv[1]).read_text())
    rows = [row(entry) for entry in entries if "-v3-" in entry["system"]]
    lines = ",\n".join(json.dumps(row) for row in rows)
    OUT.write_text(f"[\n{lines}\n]\n")
    print(f"{len(rows)} rows in {OUT}")


def row(entry: dict[str, Any]) -> dict[str, Any]:
    runs = entry["runs"]
    starts = [[block["t"] for block in run["blocks"]] for run in runs]
    spans = [[b - a for a, b in pairwise(each)] for each in starts]
    steady = [statistics.median(each[1:]) for each in spans if len(each) > 1]
    counts = [b["count"] for run in runs for b in run["blocks"][1:] if b["count"]]
    batch = runs[0]["hyperparameters"]["global_batch_size"]
    return {
        "round": entry["round"],
        "system": entry["system"],
        "benchmark": entry["benchmark"],
        "chips": entry["chips"],
        "batch": batch,
        "seconds": entry["ttt_s"],
        "statuses": [run["status"] for run in runs],
        "epochs": entry["epochs"],
        "evaluations": entry["evals_to_converge"],
        "score_s": entry["score_s"],
        "init_s": entry["init_s_mean"],
        # Between the starts of two blocks (training, then evaluation): the first of a
        # run, and the median of the others. The median over the runs of each.
        "first_block_s": middle([each[0] for each in spans if each]),
        "block_s": middle(steady),
        "epochs_per_block": statistics.mode(counts) if counts else None,
        "source": f"MLPerf Training {entry['round']}, Google, {entry['system']}: "
        "submitted logs",
    }


def middle(values: list[float]) -> float | None:
    return round(statistics.median(values), 3) if values else None


if __name__ == "__main__":
    main()
