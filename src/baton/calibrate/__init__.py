"""Cues, thresholds and scores of a pair, chosen and judged on calibration questions."""
