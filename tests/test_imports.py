"""What a user's own code is known by."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from baton.bench.environment import scorers_identity
from baton.config import PairConfig, validate
from baton.imports import code, named

POLICIES = '''
LEAST = 2


class Base:
    def least(self):
        return LEAST


class First(Base):
    """Says what it does."""

    def __call__(self):
        return self.least()  # as published


class Second:
    def __call__(self):
        return 2
'''


@pytest.fixture
def digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The digest of `policies_of_mine:First` when its file reads so."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "policies_of_mine", raising=False)

    def of(text: str) -> str:
        (tmp_path / "policies_of_mine.py").write_text(text)
        named("policies_of_mine:First", "router")
        return code({"router": "rsd", "knobs": {"inner": ["policies_of_mine:First"]}})["policies_of_mine:First"]

    return of


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("return self.least()", "return self.least() + 1", False),
        ("LEAST = 2", "LEAST = 3", False),
        ("return LEAST", "return -LEAST", False),
        ("return 2", "return 3", True),
        ("  # as published", "", True),
    ],
)
def test_a_digest_changes_with_what_the_name_can_reach_in_its_file(digest, old, new, same):
    assert (digest(POLICIES) == digest(POLICIES.replace(old, new))) is same


def test_what_is_baton_s_own_or_no_module_that_was_imported_has_no_digest(digest):
    digest(POLICIES)
    assert code(["target", "nano:draft", "baton.routers.rsd:RSD", "no_such_module:Router", 3, None, "sys:path"]) == {}


def test_scorers_are_known_by_their_weights_and_their_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "scoring_of_mine.py").write_text("def score(request):\n    return 1.0\n")
    named("scoring_of_mine:score", "function")
    (tmp_path / "prm").mkdir()
    (tmp_path / "prm" / "config.json").write_text("{}")
    scorers = {
        "prm": {"kind": "prm", "model": "prm"},
        "own": {"kind": "callable", "function": "scoring_of_mine:score"},
    }
    pair = validate(PairConfig, {"name": "p", "target": "a", "draft": "b", "scorers": scorers}, "pair.yaml")
    before = scorers_identity(pair, tmp_path, ["prm", "own"])
    assert list(before["scorers' code"]) == ["scoring_of_mine:score"]
    (tmp_path / "prm" / "config.json").write_text('{"retrained": true}')
    after = scorers_identity(pair, tmp_path, ["prm", "own"])
    assert after["scorers' weights"]["prm"] != before["scorers' weights"]["prm"]
    assert after["scorers' code"] == before["scorers' code"]
    assert scorers_identity(pair, tmp_path, []) == {}
