"""A training script under FSDP on processes without GPUs, which accelerate would run as plain data parallel.

accelerate divides weights where it believes in several GPUs; torch divides them on CPUs just as well (gloo). Here it is
told so, and all else is what `accelerate launch` with accelerate_configs/fsdp.yaml does.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import DistributedType

SCRIPT = Path(__file__).parents[2] / "scripts" / "train_prm.py"


def main() -> None:
    found: Any = PartialState.__init__

    def told(state: Any, *given: Any, **more: Any) -> None:
        found(state, *given, **more)
        if state.distributed_type is DistributedType.MULTI_CPU:
            state.distributed_type = DistributedType.MULTI_GPU

    PartialState.__init__ = told
    sys.argv[0] = str(SCRIPT)
    runpy.run_path(str(SCRIPT), run_name="__main__")


if __name__ == "__main__":
    main()
