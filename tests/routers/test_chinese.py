"""Relays in Chinese: cues without word edges, sentences that end in full-width punctuation."""

from __future__ import annotations

from baton.calibrate.cues import CHINESE_CANDIDATES
from baton.routers.relaygen import RelayGen
from baton.routers.speculative_thinking import SpeculativeThinking
from relay import follow, relay
from scripted import vocabulary

WORDS = vocabulary("我们", "得到", "因此", "，", "。", "等等", "再", "检查", "\n\n", "3.5", "答案", "不但", "而且")


def test_relaygen_hands_over_at_a_chinese_cue_and_back_at_the_full_width_stop():
    text = "我们因此，得到3.5。我们再检查。</think>答案3.5。<eos>"
    got = relay(RelayGen(cues=["因此", "因此，"]), text, vocabulary=WORDS)
    assert got.path == [
        ("target", "我们因此，"),
        ("draft", "得到3.5。"),
        ("target", "我们再检查。</think>"),
        ("draft", "答案3.5。"),
    ]


def test_every_shipped_candidate_fires_within_running_text():
    for cue in CHINESE_CANDIDATES:
        text = f"我们{cue}得到。</think>答案<eos>"
        assert relay(RelayGen(cues=[cue]), text, vocabulary=WORDS).path[0] == ("target", f"我们{cue}")


def test_speculative_thinking_hears_chinese_doubt():
    target = "我们。\n\n再检查得到。</think>答案<eos>"
    draft = "我们。\n\n等等，不但而且。</think>"
    got = relay(SpeculativeThinking(probe=2, burst=2), follow(target), follow(draft, target), vocabulary=WORDS)
    assert got.path[1] == ("target", "再检查")
