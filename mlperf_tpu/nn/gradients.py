"""Names for the ops of custom gradients, which a profile finds its layers by."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import tensorflow as tf


def gradient_scope() -> Callable[[], AbstractContextManager]:
    """A scope for the gradients of the layer that is being called, entered later.

    TensorFlow names a gradient's ops after their layer, but not a custom gradient's.
    """
    layer = tf.get_current_name_scope() or "layer"
    return lambda: tf.name_scope(f"gradient_tape/{layer}/")
