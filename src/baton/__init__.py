"""Baton: relay one answer between a small draft and a large target, and prove what that costs and saves."""

__version__ = "0.1.0"
