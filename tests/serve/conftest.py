from __future__ import annotations

from collections.abc import Iterator

import pytest
from processes import ROOT, Served, serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The nano pair with every router as its recipe sets it up."""
    with serving(tmp_path_factory.mktemp("serve"), "--recipe", str(ROOT / "recipes/nano/routers.yaml")) as served:
        yield served
