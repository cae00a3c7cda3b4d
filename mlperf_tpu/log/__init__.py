"""MLPerf training logs: write, read, judge by the rules of a round, score."""
