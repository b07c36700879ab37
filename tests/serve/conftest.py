from __future__ import annotations

from collections.abc import Iterator

import pytest
from processes import ROOT, Served, serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The nano pair with every router as its recipe sets it up; it has a key, and shows texts on its page."""
    options = ("--recipe", str(ROOT / "recipes/nano/routers.yaml"), "--show-text", "--key-env", "KEY")
    with serving(tmp_path_factory.mktemp("serve"), *options, key="open", variables={"KEY": "open"}) as served:
        yield served
