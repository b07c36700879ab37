import sys
from importlib.util import find_spec
from pathlib import Path

# The label sets of the other tests of training.
sys.path.insert(0, str(Path(__file__).parent.parent / "training"))

if find_spec("trl") is None or find_spec("peft") is None:
    # Only `make test-train` installs them.
    collect_ignore_glob = ["test_*.py"]
elif find_spec("speculators") is None:
    collect_ignore = ["test_eagle3.py"]
