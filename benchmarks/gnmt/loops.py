"""How often GNMT's loops run, by the bucket of the batch: for the forecast.

A batch's loops end with its longest sequence (nn.lstm); in a bucket's batches of
thousands of pairs some are as long as the bucket allows, on both sides.
"""

from __future__ import annotations

import math

from mlperf_tpu.spec import Spec
from mlperf_tpu.spec.loops import LoopCase, steps_a_block


def cases(spec: Spec, function: str, batch_per_replica: int) -> list[LoopCase]:
    """The buckets of the training batches, by their shares (data.bucket_shares); of an
    evaluation, the longest it may take: one long line keeps the search going.

    `function` is "step" or "evaluate".
    """
    data = spec.data
    if function == "evaluate":
        steps = data.eval_length
        blocks = math.ceil(steps / steps_a_block(steps, batch_per_replica))
        trips = (
            ("source_steps", steps),
            ("source_blocks", blocks),
            ("while", spec.model.decode_length),
        )
        return [LoopCase(1.0, f"{spec.model.decode_length} ids decoded", trips)]
    width = math.ceil(data.max_length / data.buckets)
    shares = data.bucket_shares or [1 / data.buckets] * data.buckets
    size = steps_a_block(data.max_length, batch_per_replica)
    found = []
    for k, share in enumerate(shares):
        steps = min((k + 1) * width, data.max_length)
        trips = (("_steps", steps), ("_blocks", math.ceil(steps / size)))
        found.append(LoopCase(share, f"up to {steps} sub-words", trips))
    return found
