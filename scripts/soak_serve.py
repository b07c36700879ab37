"""A server under twice the load that it can sustain, with readers who leave, stall and send nonsense.

python scripts/soak_serve.py --out soak.json       # 2,000 requests to the nano pair; exit code 1 if anything is wrong

Every answer is compared with the one that the idle server gave, every refusal must be a 4xx with a reason, and at the
end nothing may be under way and memory must be back. Figures go to `--out`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import yaml

from baton.config import NANO_PAIR
from baton.nano.problems import load
from baton.user_errors import checked

ROUTERS = ("target", "relaygen", "rsd")
QUESTIONS = 8
TOKENS = 16
SLOTS, QUEUE = 8, 16
CACHE_MB = 16
KINDS = {"whole": 0.3, "stream": 0.35, "leaves": 0.15, "slow": 0.08, "malformed": 0.12}
MALFORMED = (
    '{"model": ', "[]", '{"messages": 3}', '{"model":"nano","messages":[]}', '{"n":1e999}', "\u00e9",
    '{"model":"nano:nobody","messages":[{"role":"user","content":"x"}]}',
    '{"messages":[{"role":"user","content":"x"}],"temperature":-3}',
)  # fmt: skip
PATH = "/v1/chat/completions"


def small_pair(folder: Path) -> str:
    """The nano pair with caches that are full before the soak begins: what they keep of answers is no leak."""
    data = NANO_PAIR.model_dump(mode="json", exclude_unset=True)
    for model in (data["target"], data["draft"], *(s for s in data["scorers"].values() if s["kind"] == "prm")):
        model["cache_mb"] = CACHE_MB
    file = folder / "pair.yaml"
    file.write_text(yaml.safe_dump(data))
    return str(file)


def start(folder: Path, pair: str = "nano") -> tuple[subprocess.Popen[bytes], str]:
    log = folder / "log"
    limits = ("--slots", str(SLOTS), "--queue", str(QUEUE), "--stall", "10")
    command = [sys.executable, "-m", "baton.cli", "serve", pair, "--router", "target", "--port", "0", *limits]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    while (found := re.search(r"at (http://\S+)", log.read_text())) is None:
        if process.poll() is not None:
            raise SystemExit(log.read_text())
        time.sleep(0.1)
    while True:
        try:
            httpx.get(found[1] + "/health").raise_for_status()
            return process, found[1]
        except httpx.HTTPError:
            time.sleep(0.1)


def memory_mb(process: subprocess.Popen[bytes]) -> float:
    """Resident memory of the server, MB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


def body(question: str, router: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    return {"model": f"nano:{router}", "messages": messages, "max_tokens": TOKENS, "temperature": 0, **more}


def text_of(part: dict[str, Any]) -> str:
    return (part.get("reasoning_content") or "") + (part.get("content") or "")


class Soak:
    def __init__(self, url: str, seed: int):
        self.rng = random.Random(seed)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self.client = httpx.AsyncClient(base_url=url, timeout=120, limits=limits)
        self.questions = [p.question for p in load("dev", QUESTIONS)]
        self.expected: dict[tuple[str, str], str] = {}
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def learn(self) -> None:
        """What the idle server answers."""
        for question in self.questions:
            for router in ROUTERS:
                reply = await self.client.post(PATH, json=body(question, router))
                self.expected[question, router] = text_of(reply.json()["choices"][0]["message"])

    async def capacity(self, seconds: float) -> float:
        """Answers a second in a closed loop that fills the slots."""
        end, done = time.monotonic() + seconds, 0

        async def work() -> None:
            nonlocal done
            while time.monotonic() < end:
                await self.client.post(PATH, json=body(*self.pick()))
                done += 1

        begun = time.monotonic()
        await asyncio.gather(*(work() for _ in range(SLOTS)))
        return done / (time.monotonic() - begun)

    def pick(self) -> tuple[str, str]:
        return self.rng.choice(self.questions), self.rng.choice(ROUTERS)

    async def run(self, requests: int, rate: float) -> None:
        """Open loop: requests arrive at random, whatever became of those before."""
        tasks, due = [], time.monotonic()
        for _ in range(requests):
            due += self.rng.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            kind = self.rng.choices(list(KINDS), list(KINDS.values()))[0]
            tasks.append(asyncio.create_task(self.one(kind, *self.pick())))
        await asyncio.gather(*tasks)

    async def one(self, kind: str, question: str, router: str) -> None:
        try:
            if kind == "malformed":
                headers = {"content-type": "application/json"}
                self.refused(kind, await self.client.post(PATH, content=self.rng.choice(MALFORMED), headers=headers))
            elif kind == "whole":
                reply = await self.client.post(PATH, json=body(question, router))
                if reply.status_code == 200:
                    self.check(kind, question, router, text_of(reply.json()["choices"][0]["message"]))
                else:
                    self.refused(kind, reply)
            else:
                await self.streamed(kind, question, router)
        except httpx.HTTPError as error:
            self.wrong.append(f"{kind}: {type(error).__name__}: {error}")

    async def streamed(self, kind: str, question: str, router: str) -> None:
        leave = self.rng.randrange(1, 12) if kind == "leaves" else None
        async with self.client.stream("POST", PATH, json=body(question, router, stream=True)) as reply:
            if reply.status_code != 200:
                await reply.aread()
                self.refused(kind, reply)
                return
            text, last = "", ""
            async for line in reply.aiter_lines():
                if not line:
                    continue
                last = line.removeprefix("data: ")
                if last != "[DONE]":
                    text += text_of(json.loads(last)["choices"][0]["delta"])
                if leave is not None and (leave := leave - 1) <= 0:
                    self.outcomes["left"] += 1
                    return
                if kind == "slow":
                    await asyncio.sleep(0.1)
        if last != "[DONE]":
            self.wrong.append(f"{kind}: a stream without its end: {last[:200]}")
        self.check(kind, question, router, text)

    def check(self, kind: str, question: str, router: str, text: str) -> None:
        self.outcomes[f"{kind} answered"] += 1
        if text != self.expected[question, router]:
            self.wrong.append(f"{kind} {router}: {text[:80]!r} is not {self.expected[question, router][:80]!r}")

    def refused(self, kind: str, reply: httpx.Response) -> None:
        self.outcomes[f"{kind} refused {reply.status_code}"] += 1
        try:
            reason = reply.json()["error"]["message"]
        except (ValueError, KeyError, TypeError):
            reason = ""
        if not 400 <= reply.status_code < 500 or not reason or (kind != "malformed" and reply.status_code != 429):
            self.wrong.append(f"{kind}: refused with {reply.status_code}: {reply.text[:120]}")

    async def gauge(self, name: str) -> float:
        text = (await self.client.get("/metrics")).text
        return sum(
            float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.partition("{")[0].partition(" ")[0] == name
        )


async def soak(process: subprocess.Popen[bytes], url: str, requests: int, seed: int, warmup: float) -> dict[str, Any]:
    soak = Soak(url, seed)
    await soak.learn()
    capacity = await soak.capacity(warmup)
    # The first overload fills what the server keeps for good (buffers, connections, threads).
    await soak.run(requests // 5, 2 * capacity)
    soak.outcomes.clear()
    before, begun = memory_mb(process), time.monotonic()
    await soak.run(requests, 2 * capacity)
    seconds = time.monotonic() - begun
    names = ("baton_open_requests", "baton_slots_taken", "baton_queue_length", "baton_engine_requests")
    for _ in range(100):
        left = {name: await soak.gauge(name) for name in names}
        if not any(left.values()):
            break
        await asyncio.sleep(0.1)
    after = memory_mb(process)
    return {
        "requests": requests, "capacity_rps": capacity, "offered_rps": requests / seconds, "seconds": seconds,
        "outcomes": dict(sorted(soak.outcomes.items())), "left_over": left, "memory_mb": [before, after],
        "wrong": soak.wrong[:20], "wrong_count": len(soak.wrong),
    }  # fmt: skip


@checked()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warmup", type=float, default=15.0, help="seconds of the closed loop that finds the capacity")
    parser.add_argument("--growth", type=float, default=0.05, help="part by which memory may have grown at the end")
    parser.add_argument("--out", type=Path, default=Path("soak.json"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        process, url = start(Path(folder), small_pair(Path(folder)))
        try:
            found = asyncio.run(soak(process, url, given.requests, given.seed, given.warmup))
        finally:
            process.terminate()
            process.wait(60)
    found["cores"] = len(os.sched_getaffinity(0))
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    before, after = found["memory_mb"]
    good = not found["wrong_count"] and not any(found["left_over"].values()) and after <= before * (1 + given.growth)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
