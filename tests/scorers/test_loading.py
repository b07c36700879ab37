"""Scorers in a pair's YAML: read, checked, loaded and closed with the pair."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tiny_pair import TOKENIZER, make_model
from tiny_prms import build

from baton.config import SCORERS, ConfigError, PairConfig, load_pair
from baton.pair import Pair
from baton.scorers import KINDS, scorer_class
from baton.scorers.base import Scorer, ScoreRequest


def write(folder: Path, **scorers) -> Path:
    data = {"name": "p", "target": "target", "draft": "draft", "scorers": scorers}
    (folder / "pair.yaml").write_text(yaml.safe_dump(data))
    return folder / "pair.yaml"


@pytest.mark.parametrize(
    ("scorer", "message"),
    [
        ({"kind": "pmr"}, "scorers.s.kind: 'pmr' is unknown (did you mean 'prm'?); use one of prm, reward, judge"),
        ({}, "scorers.s.kind: None is unknown; use one of"),
        ({"kind": "prm"}, "scorers.s.model: missing; add it"),
        (
            {"kind": "prm", "model": "m", "format": "skywrok"},
            "scorers.s.format: 'skywrok' is unknown; use one of skywork, qwen",
        ),
        (
            {"kind": "prm", "model": "m", "agregate": "min"},
            "scorers.s.agregate: unknown field (did you mean 'aggregate'?)",
        ),
        ({"kind": "judge"}, "scorers.s.role: it is missing, and so is model"),
        ({"kind": "judge", "role": "target", "model": "m"}, "scorers.s.role: 'target' stands beside a model"),
        (
            {"kind": "judge", "role": "target", "template": "spec"},
            "scorers.s.template: 'spec' is unknown; use one of nano, specreason, lookahead, preference, or write",
        ),
        (
            {"kind": "judge", "role": "target", "template": {"score": "How good?"}},
            "scorers.s.template.score: the prompt has no {step}; put it where the step belongs",
        ),
        ({"kind": "judge", "role": "target", "template": {"system": "x"}}, "scorers.s.template.score: it is missing"),
        ({"kind": "confidence", "statistic": "max"}, "scorers.s.statistic: 'max' is unknown; use one of mean, min"),
        ({"kind": "callable", "function": "f"}, "scorers.s.function: 'f' cannot be used"),
    ],
)
def test_a_mistake_is_told_as_of_the_field_of_that_kind(tmp_path, scorer, message):
    with pytest.raises(ConfigError) as caught:
        load_pair(write(tmp_path, s=scorer))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_kind_that_can_be_configured_can_be_loaded():
    assert set(KINDS) == set(SCORERS)
    assert all(Scorer in scorer_class(kind).__mro__ for kind in KINDS)
    with pytest.raises(ValueError, match="scorer: 'x' is unknown; use one of judge"):
        scorer_class("x")


async def test_a_pair_loads_its_scorers_and_closes_them(tmp_path):
    for role, seed in (("target", 1), ("draft", 2)):
        make_model(seed).save_pretrained(tmp_path / role)
        TOKENIZER.save_pretrained(tmp_path / role)
    build("qwen", tmp_path / "prm")
    path = write(
        tmp_path,
        prm={"kind": "prm", "model": "prm", "format": "qwen"},
        judge={"kind": "judge", "role": "target", "template": "nano"},
        own={"kind": "judge", "model": "draft", "template": "lookahead"},
        sure={"kind": "confidence"},
        test={"kind": "callable", "function": "builtins:len"},
    )
    config = load_pair(path)
    assert PairConfig.model_validate(config.model_dump()) == config
    pair = Pair.load(config, tmp_path)
    assert set(pair.scorers) == {"prm", "judge", "own", "sure", "test"}
    step = ScoreRequest("Q?", (), "A step.", "draft", (), 0, against="Another.")
    for name in ("prm", "judge", "own"):
        (score,) = await pair.scorers[name].score([step])
        assert 0 <= score.value <= 1
    await pair.close()
    await pair.close()


def test_a_checkpoint_without_the_head_is_refused_not_filled_with_random_numbers(tmp_path):
    make_model(1).save_pretrained(tmp_path / "m")
    TOKENIZER.save_pretrained(tmp_path / "m")
    config = SCORERS["prm"].model_validate({"kind": "prm", "model": "m", "separator": "\n"})
    with pytest.raises(ValueError, match=r"no weights for score\.(bias|weight)"):
        scorer_class("prm").load("s", config, {}, tmp_path)


def test_a_scorer_that_cannot_be_loaded_is_named(tmp_path):
    for role in ("target", "draft"):
        make_model(1).save_pretrained(tmp_path / role)
        TOKENIZER.save_pretrained(tmp_path / role)
    config = load_pair(write(tmp_path, s={"kind": "prm", "model": "target", "format": "skywork"}))
    with pytest.raises(ValueError, match=r"pair.scorers.s: .*no tensor 'v_head.summary.weight'"):
        Pair.load(config, tmp_path)
