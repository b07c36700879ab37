"""Prints one question of the dev split: `baton run "$(python -m baton.nano.sample)"`."""

from __future__ import annotations

from baton.nano import problems

if __name__ == "__main__":
    print(problems.load("dev", 4)[-1].question)
