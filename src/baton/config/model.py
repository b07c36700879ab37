"""One model of a pair: the engine that runs it and where its files are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from baton import nano
from baton.config.validation import Strict, keyed
from baton.engines.base import LoadError, Speculation
from baton.engines.settings import ServerSettings, VllmSettings

EngineKind = Literal["transformers", "vllm", "openai", "simulated"]


def _server(value: Any) -> Any:
    """Lets an address stand for a group, and one address for a list."""
    if isinstance(value, str):
        return {"url": [value]}
    if isinstance(value, dict) and isinstance(value.get("url"), str):
        return {**value, "url": [value["url"]]}
    return value


class ModelConfig(Strict):
    """One model of a pair and the engine that runs it."""

    model: str = Field(min_length=1)
    """A folder (absolute, or relative to the YAML's folder), a hub id, or `nano:target` / `nano:draft`. With a server,
    only its tokenizer is read here. For the `simulated` engine a file of costs and the role it plays:
    `costs.yaml#target`."""
    engine: EngineKind = "transformers"
    vllm: VllmSettings | None = None
    """How vLLM runs it; goes with `engine: vllm`."""
    server: Annotated[ServerSettings | None, BeforeValidator(_server)] = None
    """Where it is served; goes with `engine: openai`. An address alone will do."""
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """`auto`: float32 on a CPU, the checkpoint's own elsewhere."""
    cache_mb: int = Field(default=1024, ge=1)
    """Bound on the engine's key-value caches, in MiB."""
    max_batch: int = Field(default=32, ge=1)
    """Requests that run in one step."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of the model; one if left out, which small models run best with and repeat exactly on."""
    speculative: Annotated[Speculation | None, keyed("method")] = None
    """Token-level speculation inside the engine; none if null. It changes the time that tokens take, not the tokens."""
    trust_remote_code: bool = False
    revision: str | None = None

    @model_validator(mode="after")
    def _fits_engine(self) -> ModelConfig:
        if self.vllm is not None and self.engine != "vllm":
            raise ValueError(f"vllm: it goes with engine vllm, not {self.engine!r}; drop it, or set engine to vllm")
        if self.server is not None and self.engine != "openai":
            raise ValueError(
                f"server: it goes with engine openai, not {self.engine!r}; drop it, or set engine to openai"
            )
        if self.server is None and self.engine == "openai":
            raise ValueError("server: missing; engine openai needs the server's address")
        return self

    @property
    def own(self) -> VllmSettings | ServerSettings | None:
        """The group of its engine's own settings."""
        return self.vllm or self.server


def located(model: str, base: Path, field: str = "model") -> str:
    """Where the model is that a configuration names in `field`: shipped (`nano:target`), in a folder (or file of costs)
    relative to `base`, or else on the hub.

    Raises:
        LoadError: `nano:` is followed by no shipped model.
    """
    if model.startswith("nano:"):
        shipped = nano.models()
        if (name := model.removeprefix("nano:")) not in shipped:
            raise LoadError(f"{model!r} is not shipped; use one of {', '.join(f'nano:{n}' for n in shipped)}", field)
        return str(shipped[name])
    path = base / Path(model).expanduser()
    file = base / Path(model.partition("#")[0]).expanduser()
    return str(path) if path.is_dir() or file.is_file() else model
