"""Replays: who writes how many tokens is given, and what it costs is measured.

`schedule.py` says who writes how many tokens, `turn.py` has a pair of engines write them, `results.py` keeps what was
measured, `weightless.py` makes models of real size without weights.
"""
