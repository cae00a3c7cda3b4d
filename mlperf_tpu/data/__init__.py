"""Input: building blocks, embedded data sets, checks before the clock starts."""
