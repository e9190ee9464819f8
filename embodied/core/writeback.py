"""What comes back for steps that are stored: values and priorities by step id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .chunk import Arrays
from .errors import ReplayError
from .schema import Schema


def read_update(
    data: Mapping[str, Any], schema: Schema | None
) -> tuple[np.ndarray, Arrays, np.ndarray | None]:
    """Checks an update and brings it to the stored form.

    Args:
      data: `stepid` uint8 [..., 20]; any other stored key [..., *shape]; and, optionally,
        `priority` [...].
      schema: of the steps, if there are any.

    Returns:
      Step ids [N, 20], values [N, *stored shape] by key, and priorities float64 [N], if any.

    Raises:
      ReplayError: an unknown key, a wrong shape or dtype, a value that a codec cannot represent,
        or a priority that is no priority.
    """
    values = dict(data)
    stepid = np.asarray(values.pop("stepid", None))
    if stepid.dtype != np.uint8 or stepid.shape[-1:] != (20,):
        raise ReplayError(
            f"An update has {stepid.dtype}{list(stepid.shape)} for key 'stepid': it must be "
            "uint8[..., 20] as it was drawn."
        )
    lead = stepid.shape[:-1]
    priority = values.pop("priority", None)
    priority = None if priority is None else _priorities(priority, lead)
    keys = [key for key, _, _ in schema.specs] if schema else []
    arrays = {}
    for key, value in values.items():
        if schema is None or key not in keys:
            raise ReplayError(
                f"An update has the key {key!r}, which no stored step has: the keys are {keys}."
            )
        array = schema.encode(key, value, lead)
        arrays[key] = array.reshape(-1, *array.shape[len(lead) :])
    return stepid.reshape(-1, 20), arrays, priority


def _priorities(value: Any, lead: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(value, np.float64)
    if array.shape != lead:
        raise ReplayError(
            f"An update has shape {array.shape} for key 'priority': it must be {lead}, one "
            "number a step id."
        )
    if not (array >= 0).all():
        raise ReplayError(
            f"An update has the priority {array[~(array >= 0)][0]}: priorities must be "
            "non-negative numbers."
        )
    return array.reshape(-1)
