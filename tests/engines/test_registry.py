"""Engines by kind."""

from __future__ import annotations

import subprocess
import sys

import pytest

from baton.engines import engine_class
from baton.engines.transformers import TransformersEngine


def test_a_kind_gives_its_class() -> None:
    assert engine_class("transformers") is TransformersEngine
    assert engine_class(TransformersEngine.kind) is TransformersEngine


def test_an_unknown_kind_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'ggml' is unknown; use one of transformers"):
        engine_class("ggml")


def test_the_registry_imports_no_library() -> None:
    code = "import sys, baton.engines; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
