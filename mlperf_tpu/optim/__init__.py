"""Optimizers, learning-rate schedules, and the update that may be sharded."""
