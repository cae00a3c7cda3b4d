"""Google's MLPerf Training runs on TPU pods, reproduced in TensorFlow."""

import os

__version__ = "0.1.0"

# Before whatever imports TensorFlow, which reads it once: left alone it takes oneDNN's
# kernels on AVX-512 only, and its own convolutions are half as fast on AVX2. A run that
# is resumed in another process must find the same ones.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
