"""Calibration of the gates of a comparison, where labels of its questions exist: `ece` of `results.json`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from baton.calibrate.reliability import diagram, ece
from baton.trace import Role, Trace
from baton.training.labels import Label

LEAST_STATES = 30
"""Below so many labelled decisions an arm has no calibration error: it would be noise."""

Place = tuple[str, tuple[int, ...], tuple[int, ...]]
"""A question, the ids before a step, and the step's."""


class LabelledGates:
    """Finds the labels of the decisions that arms took: the same step, after the same tokens, of the same question.

    Labels of the arm's own router (`router` and `seed` of the label recipe as the arm's) cover most of its decisions,
    others those that both came to. Pairs with two vocabularies share no ids, and so have none.
    """

    def __init__(self, labels: Sequence[Label]):
        self._keep = {(x.question, tuple(x.path_ids), tuple(x.draft_ids)): x.keep for x in labels if x.keep is not None}
        self._seen: dict[str, list[tuple[float, float, str]]] = defaultdict(list)

    def add(self, arm: str, trace: Trace) -> None:
        """Takes in the decisions of one answer."""
        by_id = {segment.id: segment for segment in trace.segments}
        for decision in trace.decisions:
            step = by_id.get(decision.node)
            if step is None or step.role is not Role.DRAFT:
                continue
            before: list[list[int]] = []
            parent = step.parent
            while parent is not None and parent in by_id:
                before.append(by_id[parent].ids)
                parent = by_id[parent].parent
            path = tuple(i for ids in reversed(before) for i in ids)
            keep = self._keep.get((trace.question, path, tuple(step.ids)))
            if keep is not None:
                self._seen[arm].append((decision.score, keep, trace.question))

    def figures(self, arm: str) -> Mapping[str, float | int | None]:
        """`ece` of the arm's scores as probabilities that accepting does no harm, and how many decisions had labels.

        None where there are too few, or scores are no probabilities: outside [0, 1].
        """
        rows = self._seen.get(arm, [])
        scores, keep = (np.asarray([row[k] for row in rows], float) for k in (0, 1))
        useful = len(rows) >= LEAST_STATES and scores.min() >= 0 and scores.max() <= 1
        found = ece(diagram(scores, keep, [row[2] for row in rows])) if useful else None
        return {"ece": found, "labelled_decisions": len(rows)}
