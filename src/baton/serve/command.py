"""`baton serve`: loads a pair, serves it, and ends in order."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from baton import routers
from baton.bench.contestants import contestant_of
from baton.bench.load import uncollected
from baton.config import (
    ConfigError,
    PairConfig,
    PolicyConfig,
    Recipe,
    cue_profile,
    load_pair,
    load_recipe,
    pair_folder,
    pair_options,
)
from baton.generation import Router
from baton.pair import Pair
from baton.serve.app import Server, build
from baton.serve.catalogue import Catalogue
from baton.serve.settings import ServeSettings
from baton.serve.vitals import guarded

log = logging.getLogger("baton.serve")
BACKLOG = 2048


def made(
    config: PairConfig, base: Path, default: PolicyConfig, arms: Mapping[str, Router], settings: ServeSettings,
    *, folder: Path, seed: int = 0,
) -> Server:  # fmt: skip
    """A server of a pair. The default's knobs that are paths start from `folder`, the pair's own paths from `base`.

    Raises:
        ValueError: a model cannot be loaded, or a router cannot run on the pair.
    """
    pair, vitals = guarded(Pair.load(config, base), settings)
    catalogue = Catalogue(config, pair, base, default, arms, folder=folder, branches=settings.branches)
    return Server(pair, vitals, catalogue, pair_options(config, seed), settings)


class Listener(uvicorn.Server):
    """Ends in order: at the first signal new requests are refused, and those under way are answered; at the second
    everything stops."""

    def __init__(self, config: uvicorn.Config, server: Server):
        super().__init__(config)
        self._server = server
        self._draining: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._draining is not None:
            self.force_exit = True
            super().handle_exit(sig, frame)
            return
        log.warning("%s: answering what is under way, then ending", signal.Signals(sig).name)
        self._server.turnstile.draining = True
        self._draining = asyncio.get_event_loop().create_task(self._drain())

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._server.settings.drain_s
        while self._server.under_way and loop.time() < end:
            await asyncio.sleep(0.05)
        if self._server.under_way:
            log.warning("%d requests are cut off", self._server.under_way)
        self.should_exit = True


def bound(settings: ServeSettings) -> socket.socket:
    """The socket to listen at.

    Raises:
        ConfigError: the address is taken, or none of this machine's.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # With the protocol named, asyncio sends what is written at once: else a stream's first piece waited 40 ms for the
    # client's kernel to acknowledge the headers.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # What a stalled reader has not taken is given up by the kernel too.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(settings.stall_s * 1000))
    try:
        listening.bind((settings.host, settings.port))
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"port: {settings.port} on {settings.host} cannot be used ({error.strerror}); give another --port or --host"
        ) from None
    return listening


def serve(
    pair_path: str, router: str, knobs: Mapping[str, Any], recipe_path: Path | None, given: dict[str, Any],
    key_env: str | None, seed: int,
) -> None:  # fmt: skip
    """The command: reads what is to be served, loads it, and serves it.

    Raises:
        ValueError: a setting, the pair, a router or the recipe cannot be used.
    """
    settings = ServeSettings(**given, keys=_keys(key_env))
    config, base = load_pair(pair_path), pair_folder(pair_path)
    arms = arms_of(load_recipe(recipe_path)) if recipe_path is not None else {}
    default = PolicyConfig(router=router, knobs=dict(knobs))
    first = routers.create(router, knobs, Path.cwd(), {"cues": cue_profile(config, base)})
    routers.check_scorers(first, config.scorers, config.name)
    # Taken before the models are loaded: that takes minutes.
    with bound(settings) as listening:
        server = made(config, base, default, arms, settings, folder=Path.cwd(), seed=seed)
        run_serve(server, listening)


def _keys(variable: str | None) -> tuple[str, ...]:
    if variable is None:
        return ()
    if not (keys := os.environ.get(variable, "").strip()):
        raise ConfigError(f"key-env: {variable!r} is not set in the environment; set it to the key")
    return tuple(key.strip() for key in keys.split(","))


def arms_of(recipe: Recipe) -> dict[str, Router]:
    """Routers of a recipe's arms, by label.

    Raises:
        ConfigError: an arm's speculation, or a share that is measured, belongs to a comparison.
    """
    found: dict[str, Router] = {}
    for arm in recipe.config.arms:
        if arm.speculative.model_fields_set or arm.share_of:
            field = "share_of" if arm.share_of else "speculative"
            raise ConfigError(f"{recipe.path}: {arm.name}.{field}: it goes with a comparison; leave the arm out")
        found[arm.name] = contestant_of(recipe, arm).router
    return found


def listener(server: Server) -> Listener:
    """What serves it at a socket."""
    config = uvicorn.Config(
        build(server), log_config=None, access_log=False, server_header=False, backlog=BACKLOG, lifespan="on",
        timeout_graceful_shutdown=2, ws="none",
    )  # fmt: skip
    return Listener(config, server)


def run_serve(server: Server, listening: socket.socket) -> None:
    """Serves until SIGTERM or Ctrl-C."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    host, port = listening.getsockname()[:2]
    log.warning("serving %s at http://%s:%d", server.pair.name, host, port)
    with uncollected():
        listener(server).run(sockets=[listening])
