"""Google's MLPerf Training runs on TPU pods, reproduced in TensorFlow."""

__version__ = "0.1.0"
