"""YAML files, before their fields are checked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import yaml

from baton.config.validation import ConfigError


class _Loader(yaml.SafeLoader):
    """Refuses a field that stands twice, of which YAML would drop the first, and reads 1e-5 as the number it is."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value!r} stands twice", problem_mark=key.start_mark)
            seen.add(str(key.value))
        return node


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def parse_yaml(text: str) -> Any:
    """What a text of YAML says.

    Raises:
        yaml.YAMLError: it is no YAML, or a field stands twice.
    """
    return yaml.load(text, _Loader)


Kind = Literal["pair", "recipe", "costs"]
REMEDIES: dict[Kind, str] = {
    "pair": "give the YAML of a pair, as a recipe's `pair` names it",
    "recipe": "give a recipe, whose `pair` names a pair",
    "costs": "give the costs of a pair (docs/plan.md), and a recipe as --recipe",
}


def read_yaml(path: Path, wanted: Kind | None = None) -> dict[str, Any]:
    """The mapping in a YAML file; with `wanted`, what plainly is a file of another kind is refused.

    Raises:
        ConfigError: the file is missing, is no YAML, holds something else than a mapping, or is of another kind.
    """
    try:
        data = parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file; check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); give a YAML file") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or "unreadable"
        raise ConfigError(f"{path}: {line}not valid YAML ({problem}); check indentation, colons and quotes") from None
    if not isinstance(data, dict):
        found = "empty" if data is None else f"a {type(data).__name__}"
        raise ConfigError(f"{path}: the file is {found}; it must hold fields, one `name: value` a line")
    if wanted is not None and (kind := _kind(data)) not in (None, wanted):
        raise ConfigError(f"{path}: it holds {'costs' if kind == 'costs' else f'a {kind}'}; {REMEDIES[wanted]}")
    return data


def _kind(data: dict[str, Any]) -> Kind | None:
    """What a mapping plainly is, by a field that only that kind has."""
    target = data.get("target")
    if "routers" in data:
        return "recipe"
    if isinstance(target, str) or (isinstance(target, dict) and "model" in target):
        return "pair"
    return "costs" if "acceptance" in data else None
