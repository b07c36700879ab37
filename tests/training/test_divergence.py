"""Divergences: where the draft leaves the target's answers, found on the nano pair."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.boundary import SENTENCE, STEP
from baton.config import NANO_PAIR
from baton.engines.base import Prefix, Sampling
from baton.generation import Budget, Options
from baton.nano import problems
from baton.pair import Pair
from baton.trace import Role
from baton.training import divergence
from baton.training.divergence import Divergence, Settings, edges, label, read
from scripted import WORDS

OPTIONS = Options(budget=Budget(tokens=400, answer_reserve=32), sampling=Sampling(temperature=0.0))


@given(st.lists(st.sampled_from(["one", " two", ".", "\n\n", ".\n\n", " ", "Wait,", "</think>"]), min_size=1))
def test_units_follow_each_other_and_end_at_token_edges(pieces):
    ids = WORDS.encode("".join(pieces))
    for unit in (STEP, SENTENCE):
        found = edges(ids, WORDS, unit)
        assert found == sorted(set(found))
        assert found[-1] == len(ids)
        closed = [n + 1 for n, i in enumerate(ids) if i == WORDS.end_of_thinking]
        assert set(closed) <= set(found)
    inner = [end for end in edges(ids, WORDS, STEP)[:-1] if end not in closed]
    assert all(WORDS.text_of(ids[:end]).endswith("\n\n") for end in inner)


async def test_rows_hold_the_drafts_other_choices_and_what_the_judge_says(tmp_path: Path):
    pair = Pair.load(NANO_PAIR.model_copy(update={"scorers": {"judge": NANO_PAIR.scorers["judge"]}}), Path())
    questions = problems.load("train", 3)
    file = tmp_path / "rows" / "1-of-1.jsonl"
    try:
        stages: list[tuple[str, int, int]] = []
        settings = Settings(unit="step", concurrency=3)
        for _ in range(2):
            count = await label(pair, questions, OPTIONS, settings, file, lambda *told: stages.append(told))
        assert count == 3
        assert stages[-1] == ("answers", 3, 3)
        rows = [row for _, row in read(tmp_path / "rows")]
        assert {row.question for row in rows} == {q.id for q in questions}
        for row in rows:
            session = pair.engines[Role.DRAFT].open(row.prompt_ids)
            scores, _ = await session.logprob(Prefix(row.prompt_ids), row.answer_ids)
            session.close()
            words = pair.engines[Role.DRAFT].vocabulary
            ends = {*words.end_of_text, words.end_of_thinking}
            others = {n: s.argmax for n, (s, i) in enumerate(zip(scores, row.answer_ids, strict=True))
                      if s.argmax != i and i not in ends}  # fmt: skip
            assert dict(zip(row.at, row.draft_ids, strict=True)) == others
            assert all(0 <= score <= 1 for score in row.same)
            assert row.vocabulary == words.fingerprint
        assert any(row.at for row in rows)
        with pytest.raises(ValueError, match="judge: 'prm' is no scorer of the pair; use one of judge, exact"):
            await label(pair, questions, OPTIONS, replace(settings, judge="prm"), file, lambda *told: None)
    finally:
        await pair.close()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Divergence("q", "v", [], [1]), "prompt_ids: it is empty"),
        (Divergence("q", "v", [1], [1, 2], [0], [5], []), "at: 1 indices for 1 tokens and 0 scores"),
        (Divergence("q", "v", [1], [1, 2], [1, 0], [5, 5], [0.0, 0.0]), "no ascending indices of 2 tokens"),
        (Divergence("q", "v", [1], [1, 2], [1], [-5], [0.0]), "ids: -5 is no token id"),
        (Divergence("q", "v", [1], [1, 2], [2], [5], [0.0]), "no ascending indices of 2 tokens"),
    ],
)
def test_a_row_that_cannot_be_one_is_refused(row: Divergence, message: str):
    with pytest.raises(ValueError, match=message):
        divergence.check(row)


def test_a_folder_without_rows_says_how_they_are_made(tmp_path: Path):
    with pytest.raises(ValueError, match=r"holds no divergences; make them with scripts/label_divergences\.py"):
        list(read(tmp_path))
