"""MLPerf logs: write, read, check against the rules, score. No TensorFlow here."""
