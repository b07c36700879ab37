"""Token heads on the nano pair: the number is that of a plain forward, and a boundary ends where it says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from baton import nano
from baton.boundary import Learned, Seen, SegmentMatcher
from baton.config import NANO_PAIR, TokenConfig
from baton.engines.base import EngineError, LoadError
from baton.generation import Budget, Options, RouterError, generate
from baton.nano import problems
from baton.pair import Pair
from baton.routers.segmenter import Segmenter
from baton.routers.token_router import TokenRouter
from baton.scorers.token import FLOOR, Token, TokenAbout, TokenHead, top_numbers
from baton.trace import Role, Trace
from scripted import WORDS, ScriptedEngine

OPTIONS = Options(budget=Budget(tokens=120, answer_reserve=24))
WIDTH = {"draft": 128, "target": 256}
TOP = 20


def make(folder: Path, role: str, vocabulary: str, inputs: str = "all") -> TokenHead:
    """A head with random weights whose numbers spread over (0, 1)."""
    torch.manual_seed(3)
    width, top = (0 if inputs == "logits" else WIDTH[role]), TOP
    table = AutoModelForCausalLM.from_pretrained(nano.pair_paths()[role]).get_input_embeddings().weight.detach()
    embedding = WIDTH[role] if inputs == "all" else 0
    about = TokenAbout(role, f"nano:{role}", vocabulary, width, top, embedding, 16, 1, "diverges", 0.6, "by hand")
    head = TokenHead(about, table if embedding else None)
    torch.nn.init.normal_(head.last.weight, std=1.0)
    head.standardise(torch.randn(50, width + top) * 3)
    head.save(folder, about)
    return head.eval()


def engines() -> Pair:
    return Pair.load(NANO_PAIR.model_copy(update={"scorers": {}}), Path())


def numbers(trace: Trace, segment: int, head: TokenHead, role: str, inputs: str) -> list[float]:
    """The head's numbers of a segment's tokens by a forward over prompt and path."""
    model = AutoModelForCausalLM.from_pretrained(nano.pair_paths()[role], dtype=torch.float32).eval()
    before: list[int] = list(trace.prompts[role])
    for kept in trace.path():
        if kept.id == segment:
            break
        before += kept.ids
    ids = next(s.ids for s in trace.segments if s.id == segment)
    with torch.inference_mode():
        states = model.get_decoder()(torch.tensor([before + ids])).last_hidden_state[0, len(before) - 1 : -1]
        top = model.lm_head(states).double().log_softmax(-1).topk(TOP).values.clamp_min(FLOOR).float()
        read = top if inputs == "logits" else torch.cat((states, top), -1)
        return head(read, torch.tensor(ids)).sigmoid().tolist()


@pytest.mark.parametrize("inputs", ["all", "logits"])
async def test_the_draft_writes_up_to_the_token_that_the_head_gives_away(tmp_path: Path, inputs: str):
    pair = engines()
    head = make(tmp_path, "draft", pair.engines[Role.DRAFT].vocabulary.fingerprint, inputs)
    config = TokenConfig(kind="token", model=str(tmp_path))
    pair = replace(pair, scorers={"token-router": Token.load("token-router", config, pair.engines, Path())})
    try:
        trace = await generate(pair, TokenRouter(), problems.load("dev", 1)[0].question, options=OPTIONS)
    finally:
        await pair.close()
    draft = [s for s in trace.path() if s.role is Role.DRAFT and s.ids]
    ended = [s for s in draft if s.ended_by.name == "token-router"]
    assert len(ended) >= 3
    for segment in draft[:6]:
        # Of its tokens none reaches the threshold; the one that did is dropped, and counted.
        assert max(numbers(trace, segment.id, head, "draft", inputs)) < 0.6 + 1e-4
    assert all(s.overshoot == 1 for s in ended)
    assert {len(s.ids) for s in trace.path() if s.role is Role.TARGET} == {1}
    assert not any(name in s.features for s in trace.segments for name in ("hidden", "top"))


async def test_a_segmenter_hands_over_in_both_directions(tmp_path: Path):
    pair = engines()
    vocabulary = pair.engines[Role.DRAFT].vocabulary.fingerprint
    scorers = {}
    for name, role in (("hand-back", "draft"), ("take-over", "target")):
        make(tmp_path / name, role, vocabulary)
        config = TokenConfig(kind="token", model=str(tmp_path / name))
        scorers[name] = Token.load(name, config, pair.engines, Path())
    pair = replace(pair, scorers=scorers)
    try:
        router = Segmenter(threshold=0.6, sure=0.4, stay=3)
        trace = await generate(pair, router, problems.load("dev", 1)[0].question, options=OPTIONS)
    finally:
        await pair.close()
    thinking = [s for s in trace.path() if s.phase == "thinking" and s.role is not Role.INSERTED]
    assert [s.role for s in thinking[:4]] == ["draft", "target", "draft", "target"]
    took_over = [s for s in thinking if s.ended_by.name == "take-over"]
    assert took_over
    assert all(len(s.ids) > 3 for s in took_over)
    assert {s.role for s in trace.path() if s.phase == "answer"} <= {Role.DRAFT, Role.INSERTED}


class Fixed:
    """A reader whose number is the token's probability of being the likeliest."""

    name, top, reads_hidden = "fixed", 1, False

    def read(self, seen: Seen) -> float:
        return seen.top[0][1]


def test_a_learned_boundary_ends_at_the_first_token_that_crosses():
    values = [0.9, 0.1, 0.7, 0.2, 0.8]
    for keep, above, after, kept in ((True, True, 0, 1), (False, True, 1, 2), (True, True, 1, 3), (True, False, 2, 4)):
        matcher = SegmentMatcher([Learned(Fixed(), 0.5, above, keep, after)], WORDS, thinking=False)
        for value in values:
            if matcher.push(WORDS.encode("one")[0], None, [(0, value)]):
                break
        assert (matcher.kept, matcher.ended_by.name) == (kept, "fixed")


def test_likeliest_tokens_that_are_not_there_are_filled_up():
    assert top_numbers([(4, -0.1), (2, -99.0)], 3) == [-0.1, FLOOR, FLOOR]


async def test_a_head_that_does_not_fit_is_refused_by_name(tmp_path: Path):
    config = TokenConfig(kind="token", model=str(tmp_path))
    draft = ScriptedEngine("draft", "one two")
    with pytest.raises(LoadError, match="no token head"):
        Token.load("head", config, {Role.DRAFT: draft}, Path())
    make(tmp_path, "draft", draft.vocabulary.fingerprint)
    with pytest.raises(LoadError, match="hidden states, which engine 'scripted' does not give"):
        Token.load("head", config, {Role.DRAFT: draft}, Path())
    draft.kind = "transformers"
    with pytest.raises(LoadError, match="does not give its model's embeddings"):
        Token.load("head", config, {Role.DRAFT: draft}, Path())
    make(tmp_path, "draft", "of another model", "logits")
    with pytest.raises(LoadError, match="the draft has another vocabulary"):
        Token.load("head", config, {Role.DRAFT: draft}, Path())
    make(tmp_path, "draft", draft.vocabulary.fingerprint, "logits")
    head = Token.load("head", config, {Role.DRAFT: draft}, Path())
    with pytest.raises(ValueError, match="gave no log-probabilities"):
        head.read(Seen(1))
    with pytest.raises(EngineError, match="reads tokens and scores no steps"):
        await head.score([])


async def test_a_router_without_its_head_says_what_is_missing():
    pair = engines()
    try:
        with pytest.raises(RouterError, match="no scorer of this pair that reads tokens"):
            await generate(pair, TokenRouter(), "1 + 1", options=OPTIONS)
    finally:
        await pair.close()
