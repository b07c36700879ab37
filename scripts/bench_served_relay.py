"""Times a relay through two servers, as published relays are run, against the target alone through its server.

The models have the shapes of published ones and no weights; `baton up` serves them, and a schedule says who writes how
many tokens, as in `bench_relay.py`. It is measured twice, one answer at a time: in text, whose prompts the servers
tokenise anew at each switch (published loops do), and in token ids. Results, in `FOLDER/h200-served-text.json` and
`h200-served-ids.json`, are appended: the same command goes on where an interrupted one stopped.

    python scripts/bench_served_relay.py --out benchmarks/relay
    python scripts/bench_served_relay.py --out /tmp/tiny --target tiny --draft tiny --cache-mb 64,64
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

# Nothing is fetched: models are configurations written here. The servers inherit it.
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", VLLM_USE_FLASHINFER_SAMPLER="0")

import yaml

from baton.cli.input import numbers
from baton.config import PairConfig, load_pair
from baton.engines.settings import VllmSettings
from baton.pair import Pair
from baton.replay.matrix import Matrix
from baton.replay.published import load_schedule
from baton.replay.results import Results
from baton.replay.schedule import Schedule
from baton.replay.turn import ARMS, Replayer
from baton.replay.weightless import SHAPES, write_pair
from baton.trace import Role
from baton.up import Servers, served, services
from baton.user_errors import checked

WAYS = ("text", "ids")
"""How the servers are spoken to."""
STOPPED = 143
"""Exit code after SIGTERM."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument(
        "--schedule", default="relaygen", help="who writes how many tokens: a file, or as `baton replay`"
    )
    parser.add_argument("--target", choices=SHAPES, default="32b")
    parser.add_argument("--draft", choices=SHAPES, default="1.7b")
    parser.add_argument("--cache-mb", default="8192,4096", help="of target and draft")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--graphs", choices=("own", "piecewise", "full"), default="own", help="of steps that read")
    parser.add_argument("--answers", type=int, default=1, help="of a turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--port", type=int, default=8100, help="the first of two")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="break off what would end later")
    asked = parser.parse_args()
    asked.cache_mb = numbers("--cache-mb", asked.cache_mb, int)
    if len(asked.cache_mb) != 2:
        parser.error(f"--cache-mb: {asked.cache_mb} is not one number for each model; write them as 8192,4096")
    return asked


def pair_of(asked: argparse.Namespace, folder: Path) -> PairConfig:
    settings = VllmSettings(context=asked.context, graphs=None if asked.graphs == "own" else asked.graphs)
    sizes = {Role.TARGET: asked.target, Role.DRAFT: asked.draft}
    return load_pair(write_pair(folder, sizes, dict(zip(sizes, asked.cache_mb, strict=True)), settings))


def clients(text: str, folder: Path) -> dict[str, PairConfig]:
    """The pair behind its servers, spoken to in two ways."""
    found = {}
    for how in WAYS:
        pair = yaml.safe_load(text)
        for role in ("target", "draft"):
            pair[role]["server"]["text"] = how == "text"
        file = folder / f"{how}.yaml"
        file.write_text(yaml.safe_dump(pair))
        found[how] = load_pair(file)
    return found


def kept(asked: argparse.Namespace, schedule: Schedule) -> dict[str, Results]:
    """What is measured so far, in text and in ids."""
    names = ("target", "draft", "cache_mb", "context", "graphs", "answers")
    about = {name: getattr(asked, name) for name in names}
    about |= {"schedule": Path(asked.schedule).name, "target_share": round(schedule.share, 4)}
    return {how: Results(asked.out / f"h200-served-{how}.json", {**about, "in": how}) for how in WAYS}


async def run(asked: argparse.Namespace, schedule: Schedule, results: dict[str, Results], folder: Path) -> int:
    begun = time.monotonic()
    config = pair_of(asked, folder)
    found = services(config, folder, "127.0.0.1", asked.port)
    ready = asyncio.Event()
    servers = Servers(found, lambda name, line: print(f"[{name}] {line}", file=sys.stderr, flush=True))
    serving = asyncio.create_task(servers.run(ready.set))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait([serving, waiting], return_when=asyncio.FIRST_COMPLETED)
    if not ready.is_set():
        waiting.cancel()
        await serving
        return STOPPED
    print(f"servers started in {time.monotonic() - begun:.0f} s", flush=True)

    async def both() -> None:
        for how, client in clients(served(config, found), folder).items():
            print(f"-- {how}", flush=True)
            async with Pair.load(client, folder) as pair:
                await Matrix(
                    results[how], Replayer(pair.engines, schedule), (1,), answers=asked.answers, turns=asked.turns,
                    end=begun + asked.seconds, probes=False,
                ).measure()  # fmt: skip

    measuring = asyncio.create_task(both())
    await asyncio.wait([serving, measuring], return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        measuring.cancel()
        await asyncio.wait([measuring])
        # It raises where a server ended by itself.
        serving.result()
        return STOPPED
    servers.stop()
    await serving
    measuring.result()
    return 0


@checked()
def main() -> int:
    asked = arguments()
    schedule = load_schedule(asked.schedule)
    results, code = kept(asked, schedule), 0
    if all(each.has(1, arm, turn) for each in results.values() for arm in ARMS for turn in range(asked.turns)):
        print("all is measured", flush=True)
    else:
        with tempfile.TemporaryDirectory() as folder:
            code = asyncio.run(run(asked, schedule, results, Path(folder)))
    for how, each in results.items():
        for row in each.summary():
            print(how, json.dumps(row))
    return code


if __name__ == "__main__":
    sys.exit(main())
