"""What this process started ends with it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from baton.leash import Leash

PARENT = """
import subprocess, time
from baton.leash import Leash
sleeping = ["sleep", "60"]
one, group = subprocess.Popen(sleeping), subprocess.Popen(["sh", "-c", "sleep 60 & wait"], start_new_session=True)
leash = Leash([one.pid, -group.pid])
print("started", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_processes_end_with_the_one_that_holds_them(number: int) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "started\n"
    parent.send_signal(number)
    # Until nobody holds the pipe that all of them write to.
    parent.communicate(timeout=20)


def test_those_that_are_let_go_live_on() -> None:
    child = subprocess.Popen(["sleep", "60"])
    Leash([child.pid]).drop()
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.3)
    child.kill()
    child.wait()
