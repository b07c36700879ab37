"""The API's own schema, fuzzed: whatever is sent, the server does not fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from processes import serving

pytestmark = pytest.mark.serve

CHECKS = "not_a_server_error,content_type_conformance,unsupported_method"
EXAMPLES = 60


def test_no_request_makes_the_server_fail(tmp_path: Path) -> None:
    program = shutil.which("schemathesis", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("schemathesis is not installed")
    with serving(tmp_path, "--max-tokens", "4", "--deadline", "5") as server:
        command = [program, "run", f"{server.url}/openapi.json", "--checks", CHECKS, "--max-examples", str(EXAMPLES),
                   "--seed", "1", "--no-color", "--suppress-health-check", "all"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        answered = server.metric("baton_requests_total", status="200")
        refused = server.metric("baton_requests_total", status="400")
        assert answered > 0
        assert refused > 0
        assert "Traceback" not in server.log.read_text()
        server.wait("baton_open_requests", 0)
