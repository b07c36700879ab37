"""The harness: questions, grading, statistics, and the comparison of routers on one pair."""
