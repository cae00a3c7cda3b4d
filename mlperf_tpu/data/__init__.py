"""Input: building blocks, the embedded data sets, and checks before the clock starts."""
