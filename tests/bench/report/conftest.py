from pathlib import Path

import pytest
from small import recipe

from baton.bench.command import run_compare


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a finished run; tests read it."""
    folder = tmp_path_factory.mktemp("report")
    assert run_compare(recipe(folder), out=folder / "run") == 0
    return folder / "run"


@pytest.fixture(scope="session")
def other_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run with another seed and fewer arms; tests read it."""
    folder = tmp_path_factory.mktemp("other")
    path = recipe(folder, "warm", seed=1, routers=["target", "draft"], latency=None)
    assert run_compare(path, out=folder / "warmer") == 0
    return folder / "warmer"
