"""How fast the links of a slice are, and how long a message takes to start."""

from __future__ import annotations

from dataclasses import dataclass

# cloud.google.com/tpu/docs/v3: all-reduce bandwidth 340 TB/s a pod of 1024 chips, that
# is 332 GB/s a chip or 83 GB/s for each of 4 links. 82 GB/s (656 Gb/s) is taken for it.
LINK_GB_S = 82.0
# Assumptions; no source gives them. The v0.6 ResNet-50 steps hardly tell them, as only
# those of 1024 chips wait much for messages (scripts/fit_network.py, which says so in
# results/plan_resnet50.md).
MESSAGE_US = 0.5  # from one step of a ring to the next, one hop included
HOP_US = 0.1  # each further hop: it passes through a chip without stopping
CROSS_POD_US = 1.0  # added by the longer optical links between pods (2011.03641)
CROSS_POD_GB_S = 82.0  # as within a pod
# The cores of a chip exchange through its memory: half of its 900 GB/s
# (cloud.google.com/tpu/docs/v3), as each byte is written and read (assumption).
CORE_GB_S = 450.0
CORE_US = 1.0


@dataclass(frozen=True)
class Links:
    """Times in microseconds, bandwidths in 10^9 bytes a second and direction."""

    message_us: float = MESSAGE_US
    hop_us: float = HOP_US
    gb_s: float = LINK_GB_S
    cross_pod_us: float = CROSS_POD_US
    cross_pod_gb_s: float = CROSS_POD_GB_S
    core_us: float = CORE_US
    core_gb_s: float = CORE_GB_S


V3 = Links()
