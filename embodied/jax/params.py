"""Which parameters of a checkpoint fit an agent, and how to say what does not."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import Any

from ..core.errors import CheckpointError

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Match:
    """How the parameters of a checkpoint compare with those of an agent.

    Attributes:
      matched: names that both have with one shape.
      missing: names, with shapes, that only the agent has.
      unexpected: names, with shapes, that only the checkpoint has.
      reshaped: names with the shapes in the agent and in the checkpoint.
    """

    matched: list[str]
    missing: dict[str, Shape]
    unexpected: dict[str, Shape]
    reshaped: dict[str, tuple[Shape, Shape]]

    @property
    def misfits(self) -> list[str]:
        """All names that do not match."""
        return [*self.missing, *self.unexpected, *self.reshaped]


def compare(have: Mapping[str, Any], saved: Mapping[str, Any], regex: str | None = None) -> Match:
    """Compares names and shapes.

    Args:
      have: the agent's parameters, or anything else with a `shape`.
      saved: the checkpoint's.
      regex: look only at names in which it is found; all names by default.
    """
    chosen = [k for k in dict.fromkeys([*have, *saved]) if regex is None or re.search(regex, k)]
    shapes = {k: (_shape(have, k), _shape(saved, k)) for k in chosen}
    return Match(
        [k for k, (x, y) in shapes.items() if x == y],
        {k: x for k, (x, y) in shapes.items() if x is not None and y is None},
        {k: y for k, (x, y) in shapes.items() if x is None and y is not None},
        {k: (x, y) for k, (x, y) in shapes.items() if x is not None and y is not None and x != y},
    )


def check(match: Match, regex: str | None = None) -> None:
    """Raises a `CheckpointError` unless something matches and nothing is amiss.

    Args:
      match: from `compare`.
      regex: with which the names were chosen.
    """
    if not match.matched and not match.misfits:
        raise CheckpointError(
            f"The regex {regex!r} matches no parameter of the checkpoint or of the agent."
        )
    if not match.misfits:
        return
    found = [
        *(f"{k!r} is {x} here but {y} in it" for k, (x, y) in match.reshaped.items()),
        *(f"{k!r} {x} is missing from it" for k, x in match.missing.items()),
        *(f"{k!r} {x} is only in it" for k, x in match.unexpected.items()),
    ]
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    fits = fitting_regex(match.matched, match.misfits)
    way = f"the regex {fits!r} loads what fits" if fits else "no parameter fits"
    raise CheckpointError(
        f"The checkpoint does not fit the agent: {', '.join(found[:3])}{more}; {way}."
    )


def fitting_regex(matched: Collection[str], misfits: Collection[str]) -> str:
    """The shortest regex of path prefixes that finds all matched names and no misfit.

    Returns:
      For example `^(dyn/|enc/linear0/kernel$)`; empty if nothing matched.
    """
    prefixes = _prefixes(sorted(matched), set(misfits), "")
    if not prefixes:
        return ""
    joined = "|".join(prefixes)
    return f"^({joined})" if len(prefixes) > 1 else f"^{joined}"


def count_modules(names: Collection[str]) -> str:
    """The number of parameters in each module, such as `dyn 12, enc 4`."""
    counts = collections.Counter(x.split("/")[0] for x in names)
    return ", ".join(f"{k} {v}" for k, v in sorted(counts.items()))


def _shape(values: Mapping[str, Any], key: str) -> Shape | None:
    return tuple(values[key].shape) if key in values else None


def _prefixes(matched: list[str], misfits: set[str], prefix: str) -> list[str]:
    """Prefixes below `prefix` that cover the matched names and none of the misfits."""
    result = []
    for name in dict.fromkeys(x[len(prefix) :].split("/")[0] for x in matched):
        path = prefix + name
        if path in matched:
            result.append(re.escape(path) + "$")
        below = [x for x in matched if x.startswith(path + "/")]
        if below and any(x.startswith(path + "/") for x in misfits):
            result += _prefixes(below, misfits, path + "/")
        elif below:
            result.append(re.escape(path) + "/")
    return result
