"""What a user's own code is known by."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

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
