"""Prints what finding each of the TPUs named says; there is none."""

import sys

from mlperf_tpu.cli.train import import_tensorflow

if __name__ == "__main__":
    import_tensorflow()
    from mlperf_tpu.errors import BadInput
    from mlperf_tpu.mesh import tpu

    for name in sys.argv[1:]:
        try:
            print(tpu._find(name))
        except BadInput as error:
            print(error)
