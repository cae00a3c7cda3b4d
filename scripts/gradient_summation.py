"""Proves and forecasts the gradient sums, and writes results/gradient_summation.md.

    python scripts/gradient_summation.py            # forecasts: about a minute
    python scripts/gradient_summation.py --proofs   # all proofs too: about 20 minutes

Without --proofs the proofs' section of the file is kept as it stands.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from mlperf_tpu.collectives.proof import prove
from mlperf_tpu.collectives.schedules import Schedule
from mlperf_tpu.collectives.schedules_choice import every_gradient_sum, gradient_sum
from mlperf_tpu.collectives.simulate import fastest, simulate
from mlperf_tpu.pod.failures import forecast_failure
from mlperf_tpu.topology import Topology
from mlperf_tpu.topology.links import V3, Links

RESULTS = Path(__file__).parents[1] / "results" / "gradient_summation.md"
HEADING = "## Proofs"
RESNET50 = 102.4e6  # bytes: 25.6 million float32 gradients
BERT = 0.67e9  # bytes: 335 million bfloat16 gradients
HOLE = "12,4:4x2"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--proofs", action="store_true")
    proofs = parser.parse_args().proofs
    kept = RESULTS.read_text().partition(HEADING)[2] if RESULTS.exists() else ""
    text = HEADER + forecasts() + multipod() + failures()
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(text + HEADING + (run_proofs() if proofs else kept))


HEADER = f"""# Gradient summation: forecasts and proofs

Made by `python scripts/gradient_summation.py --proofs`. All times are forecasts of the
link-level simulation, none is measured. Links: {V3.gb_s:g} GB/s each way,
{V3.message_us:g} us a step, {V3.hop_us:g} us each further hop, {V3.cross_pod_us:g} us
more between pods; the microseconds are assumptions (`mlperf_tpu/topology/links.py`).
The sums are between chips where nothing is said of cores.

"""


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n\n"


def forecasts() -> str:
    """The sum of each payload on each of Google's grids, by ring and in 2-D."""
    rows = []
    for chips in (16, 64, 128, 256, 512, 1024, 2048, 4096):
        grid = Topology.for_chips(chips)
        ring, flat = gradient_sum(grid, "ring"), gradient_sum(grid)
        cells = [f"{chips}", grid.name, f"{ring.n_steps}", f"{flat.n_steps}"]
        for payload in (RESNET50, BERT):
            one = simulate(ring, payload).total_ms
            two = simulate(flat, payload).total_ms
            cells += [f"{one:.3f}", f"{two:.3f}", f"{one / two:.2f}"]
        cores = simulate(gradient_sum(grid, cores=True), RESNET50).total_ms
        rows.append([*cells, f"{cores:.3f}"])
    head = ["chips", "grid", "steps, ring", "steps, 2-D"]
    for name in ("ResNet-50", "BERT"):
        head += [f"{name} ring, ms", "2-D, ms", "ring / 2-D"]
    head.append("ResNet-50 2-D, cores, ms")
    return (
        f"## One all-reduce\n\nResNet-50: {RESNET50 / 1e6:g} MB (float32); BERT: "
        f"{BERT / 1e6:g} MB (bfloat16). In the last column the two cores of a chip sum "
        "first.\n\n" + table(head, rows)
    )


def multipod() -> str:
    """What the X phase of 128x32 takes beside the payload time of the Y phase."""
    schedule = gradient_sum(Topology.for_chips(4096))
    rows = []
    for message_us in (1.0, 0.25, 0.0):
        links = Links(message_us=message_us, cross_pod_us=message_us)
        began = time.process_time()
        forecast = simulate(schedule, RESNET50, links)
        took = time.process_time() - began
        x, y = (forecast.phase_ms(f"reduce-scatter {axis}") for axis in "xy")
        payload_y = y - 31 * message_us * 1e-3
        cells = [x, payload_y, payload_y / x, forecast.total_ms]
        rows.append(
            [f"{message_us:g}", *(f"{cell:.3f}" for cell in cells), f"{took:.1f}"]
        )
    head = ["us a step", "x, ms", "y payload, ms", "y payload / x", "all-reduce, ms"]
    return (
        "## Multipod 128x32, ResNet-50\n\nRings along y, then lines along x on a 32nd "
        "of the payload. The payload alone (0 us) meets the aim of y / x >= 8; the 127 "
        "steps of the line keep it from that once a step takes more than about a "
        "quarter of a microsecond.\n\n"
        + table([*head, "simulated in, s of one core"], rows)
    )


def failures() -> str:
    """A run with a hole, beside the run without."""
    # What a step computes: ResNet-50's published steady step (v0.6: 44.0 and 25.1 ms at
    # 512 and 1024 chips) less its forecast sum; BERT's published step of one sequence a
    # core (v0.7: 46.5 ms at 4096 chips) less its forecast sum, times the sequences a
    # core of a batch of 8192, as there is no published step at these sizes.
    multipod = every_gradient_sum(Topology.for_chips(4096), cores=True)
    sequence_ms = 46.5 - fastest(multipod, BERT)[1].total_ms
    rows = []
    for chips, step_ms in ((512, 44.0), (1024, 25.1)):
        grid = Topology.for_chips(chips)
        resnet = fastest(every_gradient_sum(grid, cores=True), RESNET50)[1]
        runs = [
            ("ResNet-50", 32768, step_ms - resnet.total_ms, RESNET50),
            ("BERT", 8192, sequence_ms * 8192 / (2 * chips), BERT),
        ]
        for name, batch, compute_ms, payload in runs:
            holed = grid.with_holes([HOLE])
            for keep in (False, True):
                f = forecast_failure(holed, batch, compute_ms, payload, keep_batch=keep)
                rows.append(
                    [
                        name,
                        f.schedule.partition(",")[0],
                        f"{f.whole.chips} to {f.left.chips}",
                        f"{f.whole.global_batch} to {f.left.global_batch}",
                        f"{f.whole.batch_per_replica} to {f.left.batch_per_replica}",
                        *(
                            f"{whole:.2f} to {left:.2f}"
                            for whole, left in (
                                (f.whole.gradient_sum_ms, f.left.gradient_sum_ms),
                                (f.whole.step_ms, f.left.step_ms),
                            )
                        ),
                        f"{f.step_growth:+.1%}",
                        f"{f.throughput_per_chip:.3f}",
                    ]
                )
    head = [
        "run",
        "schedule",
        "chips",
        "batch",
        "a replica",
        "sum, ms",
        "step, ms",
        "step",
    ]
    return (
        f"## With a 4x2 hole at {HOLE.partition(':')[0]}\n\nThe abstract of 2011.03605 "
        'says "minimal impact to training throughput on 512 and 1024 TPU-v3 chips". '
        "The batch of a replica is kept, or else the global batch is kept and divided "
        "anew, rounded up, so that a step computes as the fullest replica does. Of the "
        "2-D scheme and the 1-D circuit, the faster. BERT's step is scaled from 4096 "
        "chips: an estimate.\n\n" + table([*head, "throughput a surviving chip"], rows)
    )


def even_holes(columns: int, rows: int) -> Iterator[str]:
    for width, height in ((4, 2), (2, 2)):
        for x in range(0, columns - width + 1, 2):
            for y in range(0, rows - height + 1, 2):
                if columns * rows > width * height:
                    yield f"{x},{y}:{width}x{height}"


def run_proofs() -> str:
    """Every shape from 2x2 to 16x16, whole and with every hole at even places."""
    began = time.process_time()
    kinds: Counter[tuple[str, str]] = Counter()
    for columns, rows in itertools.product(range(2, 17), repeat=2):
        for wrap in ("mesh", "torus"):
            if wrap == "torus" and min(columns, rows) < 3:
                continue
            grid = Topology(columns, rows, wrap == "torus", wrap == "torus")
            kinds.update(_prove_all(wrap, "whole", [grid]))
            holed = (grid.with_holes([hole]) for hole in even_holes(columns, rows))
            kinds.update(_prove_all(wrap, "one hole", holed))
        print(f"{columns}x{rows}: {sum(kinds.values())} proofs", flush=True)
    rng = random.Random(0)
    kinds.update(_prove_all("up to 128x32", "0 to 3 holes", _random_grids(rng, 24)))
    minutes = (time.process_time() - began) / 60
    counts = [[*key, f"{n}"] for key, n in sorted(kinds.items())]
    return (
        "\n\nMeshes and tori of every shape from 2x2 to 16x16, whole and with every "
        "4x2 and 2x2 hole whose corner is at even places, by both algorithms; and 24 "
        "random meshes, tori and half-wrapped grids up to 128x32 with up to 3 holes "
        "anywhere. Every proof passed: exact sums on every survivor, no failed chip or "
        "absent link touched, each chunk once a phase, no collision. A grid that its "
        f"hole cuts in two is refused. {minutes:.0f} minutes of one core.\n\n"
        + table(["grids", "schedule that served", "proofs"], counts)
    )


def _prove_all(
    wrap: str, what: str, grids: Iterator[Topology] | list[Topology]
) -> Counter[tuple[str, str]]:
    kinds: Counter[tuple[str, str]] = Counter()
    for grid in grids:
        if not grid.connected:
            kinds[f"{wrap}, {what}", "refused: cut in two"] += 1
            continue
        for algorithm in ("torus2d", "ring"):
            schedule = gradient_sum(grid, algorithm)
            prove(schedule)
            kinds[f"{wrap}, {what}", _served(schedule, algorithm)] += 1
    return kinds


def _served(schedule: Schedule, algorithm: str) -> str:
    return f"{algorithm}: {schedule.name}"


def _random_grids(rng: random.Random, n: int) -> Iterator[Topology]:
    for _ in range(n):
        columns, rows = rng.randint(17, 128), rng.randint(4, 32)
        grid = Topology(columns, rows, rng.random() < 0.5, rng.random() < 0.5)
        corners = [
            (rng.randrange(columns - 3), rng.randrange(rows - 1), rng.choice((2, 4)))
            for _ in range(rng.randint(0, 3))
        ]
        yield grid.with_holes(f"{x},{y}:{width}x2" for x, y, width in corners)


if __name__ == "__main__":
    main()
