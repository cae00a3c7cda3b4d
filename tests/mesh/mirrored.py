"""A TPU slice's stand-in: MirroredStrategy over logical CPU devices."""

import tensorflow as tf

from mlperf_tpu.mesh.strategy import StrategyMesh


class MirroredPlace:
    """The collectives as the replica context's. Groups are gathered whole and picked
    from: slow, and right."""

    def __init__(self, n_replicas: int) -> None:
        self.n_replicas = n_replicas

    @staticmethod
    def _context():
        return tf.distribute.get_replica_context()

    def replica_id(self):
        return tf.convert_to_tensor(self._context().replica_id_in_sync_group)

    def _gathered(self, value, groups):
        """[group size, ...] of this replica's group."""
        rows = self._context().all_gather(value[tf.newaxis], axis=0)
        member_of = {r: group for group in groups for r in group}
        members = [member_of[r] for r in range(self.n_replicas)]
        return tf.gather(rows, tf.gather(members, self.replica_id()))

    def all_reduce(self, values, groups):
        if len(groups) == 1:
            return self._context().all_reduce(tf.distribute.ReduceOp.SUM, list(values))
        return [tf.reduce_sum(self._gathered(v, groups), 0) for v in values]

    def reduce_scatter(self, values, groups):
        sums = self.all_reduce(values, groups)
        place = {r: group.index(r) for group in groups for r in group}
        mine = tf.gather([place[r] for r in range(self.n_replicas)], self.replica_id())
        return [tf.gather(v, mine) for v in sums]

    def all_gather(self, values, groups):
        return [self._gathered(v, groups) for v in values]


def mirrored_mesh(n_devices: int, steps_per_call: int) -> StrategyMesh:
    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * n_devices
    )
    strategy = tf.distribute.MirroredStrategy([f"/cpu:{d}" for d in range(n_devices)])
    return StrategyMesh(strategy, MirroredPlace(n_devices), steps_per_call)
