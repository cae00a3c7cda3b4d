"""Maps benchmarks/ and configs/, which stand at the top of the checkout, into the
package as mlperf_tpu.benchmarks and mlperf_tpu.configs; the rest is in pyproject.toml.
Found, not listed, so that a new benchmark edits no central list."""

from setuptools import find_packages, setup

mapped = find_packages(include=["benchmarks", "benchmarks.*", "configs"])
setup(
    packages=[
        *find_packages(include=["mlperf_tpu", "mlperf_tpu.*"]),
        *(f"mlperf_tpu.{name}" for name in mapped),
    ],
    package_dir={
        "mlperf_tpu.benchmarks": "benchmarks",
        "mlperf_tpu.configs": "configs",
    },
    package_data={
        "mlperf_tpu": ["**/*.yaml", "**/*.json"],
        "mlperf_tpu.configs": ["*.yaml"],
    },
)
