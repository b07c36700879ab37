"""The clock that tests run on."""

from baton.virtual_clock import VirtualClockLoop, run

__all__ = ["VirtualClockLoop", "run"]
