"""Trains an Eagle-3 head from the target's own answers; needs the extras train and eagle3, and `speculators`:

pip install 'batonlm[train,eagle3]' && pip install --no-deps speculators==0.9.0
baton compare recipes/nano/eagle3-answers.yaml --out runs/nano/eagle3-answers
python scripts/train_eagle3.py --config recipes/nano/train/eagle3.yaml
"""

from __future__ import annotations

import json
import sys

from baton.user_errors import checked

try:
    from baton.training.config import Training
    from baton.training.eagle3 import Eagle3Training, train
    from baton.training.launch import parsed
except ModuleNotFoundError as missing:
    print(
        f"error: {missing.name} is not installed; pip install 'batonlm[train,eagle3]' and then "
        "pip install --no-deps speculators==0.9.0",
        file=sys.stderr,
    )
    raise SystemExit(2) from None


@checked()
def main() -> None:
    asked, training = parsed((Eagle3Training, Training), sys.argv[1:])
    print(json.dumps(train(asked, training)), flush=True)


if __name__ == "__main__":
    main()
