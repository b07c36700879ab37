"""What tests start does not outlive them."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from running import running


def test_a_process_ends_with_a_test_that_fails():
    waits = [sys.executable, "-c", "input()"]
    with pytest.raises(AssertionError), running(waits, stdin=subprocess.PIPE) as process:
        raise AssertionError
    assert process.returncode == -signal.SIGKILL
