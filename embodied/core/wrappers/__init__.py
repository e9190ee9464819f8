"""Wrappers change what an environment observes, takes and does; each does one thing."""

from .actions import ClipAction, DiscretizeAction, NormalizeAction
from .base import Wrapper
from .checks import CheckSpaces, UnifyDtypes
from .episodes import ActionRepeat, RestartOnException, TimeLimit
from .observations import AddObs, BackwardReturn, FlattenObs, ResizeImage
