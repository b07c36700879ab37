"""One answer while it is written: the tree of segments, its ledgers, budget and phase.

A router sees nothing of engines. It starts segments after any node of the tree, scores, decides, commits and
discards them; the committed path is the answer. Everything it does lands in the `Trace`. The words it has are those
of `Generation` in `answer.py`; the other modules are what stands behind them.
"""

from baton.generation.answer import Generation
from baton.generation.options import Budget, Options, Router, RouterError, knobs
from baton.generation.pending import Pending, PendingCall
from baton.generation.run import generate
from baton.generation.tree import RESERVE_REACHED

__all__ = [
    "RESERVE_REACHED",
    "Budget",
    "Generation",
    "Options",
    "Pending",
    "PendingCall",
    "Router",
    "RouterError",
    "generate",
    "knobs",
]
