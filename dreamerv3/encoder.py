"""The encoder: observations of one step to tokens, one vector."""

import math
from typing import Any

import elements
import jax
import jax.numpy as jnp
import ninjax as nj
import numpy as np

from embodied.core.errors import SpaceError
from embodied.jax import nets
from embodied.jax.blocks import DictConcat

Tree = Any


class Encoder(nj.Module):
    """Vectors go through an MLP, images through a convolutional network.

    It keeps no state over time, so its carry and its entries are empty.

    Args:
      units, layers, norm, act: of the MLP.
      depth, mults, kernel: channels, their multiple per stage, and the window of the convolutions.
      symlog: whether floats are compressed.
      outer: whether the first stage keeps the full resolution.
      strided: whether convolutions shrink the image, in place of pooling.
    """

    units: int = 1024
    norm: str = "rms"
    act: str = "silu"
    depth: int = 64
    mults: tuple = (2, 3, 4, 4)
    layers: int = 3
    kernel: int = 5
    symlog: bool = True
    outer: bool = False
    strided: bool = False
    winit: str = "trunc_normal_in"

    def __init__(self, obs_space: dict[str, elements.Space]):
        self.obs_space = obs_space
        self.veckeys, self.imgkeys = split_keys(obs_space)
        self.depths = tuple(self.depth * mult for mult in self.mults)
        if self.imgkeys:
            minimal_grid(obs_space, self.imgkeys, len(self.depths) - int(self.outer))

    @property
    def entry_space(self) -> dict[str, elements.Space]:
        """Nothing needs to be stored."""
        return {}

    def initial(self, batch_size: int) -> Tree:
        """No state."""
        return {}

    def truncate(self, entries: Tree) -> Tree:
        """No state."""
        return {}

    def __call__(
        self, carry: Tree, obs: Tree, reset: jax.Array, training: bool, single: bool = False
    ) -> tuple[Tree, Tree, jax.Array]:
        """Encodes [B, T, ...] per key, or [B, ...] if `single`.

        Returns:
          Carry and entries, both empty, and tokens [B, T, E].
        """
        bshape = reset.shape
        parts = []
        if self.veckeys:
            spaces = {k: self.obs_space[k] for k in self.veckeys}
            squish = nets.symlog if self.symlog else lambda x: x
            x = DictConcat(spaces, 1, squish)(obs)
            parts.append(self._mlp(x.reshape((-1, x.shape[-1]))))
        if self.imgkeys:
            x = jnp.concatenate([obs[k] for k in self.imgkeys], -1)
            x = nets.cast(x, force=True) / 255 - 0.5
            parts.append(self._cnn(x.reshape((-1, *x.shape[-3:]))))
        tokens = jnp.concatenate(parts, -1)
        return carry, {}, tokens.reshape((*bshape, tokens.shape[-1]))

    def _mlp(self, x):
        for i in range(self.layers):
            x = self.sub(f"mlp{i}", nets.Linear, self.units, winit=self.winit)(x)
            x = nets.act(self.act)(self.sub(f"mlp{i}norm", nets.Norm, self.norm)(x))
        return x

    def _cnn(self, x):
        for i, depth in enumerate(self.depths):
            shrink = not (self.outer and i == 0)
            stride = 2 if shrink and self.strided else 1
            x = self.sub(f"cnn{i}", nets.Conv2D, depth, self.kernel, stride, winit=self.winit)(x)
            if shrink and not self.strided:
                batch, height, width, _ = x.shape
                x = x.reshape((batch, height // 2, 2, width // 2, 2, depth)).max((2, 4))
            x = nets.act(self.act)(self.sub(f"cnn{i}norm", nets.Norm, self.norm)(x))
        return x.reshape((x.shape[0], -1))


def split_keys(obs_space: dict[str, elements.Space]) -> tuple[list[str], list[str]]:
    """Sorted keys of vectors (rank up to 2) and of images (rank 3, uint8).

    Raises:
      SpaceError: a key is neither, or there is no key at all.
    """
    veckeys = sorted(k for k, v in obs_space.items() if len(v.shape) <= 2)
    imgkeys = sorted(k for k, v in obs_space.items() if len(v.shape) == 3)
    for key in sorted(set(obs_space) - set(veckeys) - set(imgkeys)):
        raise SpaceError(
            f"The observation {key!r} has shape {obs_space[key].shape}, but only vectors (rank up "
            "to 2) and images (rank 3) can be encoded: reshape it in the environment."
        )
    for key in imgkeys:
        if obs_space[key].dtype != np.uint8:
            raise SpaceError(
                f"The observation {key!r} is an image of {obs_space[key].dtype}, but uint8 is "
                "needed: scale it to 0..255 in the environment."
            )
    if not obs_space:
        raise SpaceError("The environment has no observation for the agent to encode.")
    return veckeys, imgkeys


def minimal_grid(
    obs_space: dict[str, elements.Space], imgkeys: list[str], stages: int
) -> tuple[int, int]:
    """Height and width of the images after halving them `stages` times.

    Raises:
      SpaceError: images differ in size, or the result is not whole or not within 3..16.
    """
    sizes = {k: obs_space[k].shape[:2] for k in imgkeys}
    if len(set(sizes.values())) > 1:
        raise SpaceError(
            f"Images have different sizes {sizes}, but one size is needed: resize them."
        )
    (size,) = set(sizes.values())
    factor = 2**stages
    grid = (size[0] // factor, size[1] // factor)
    if any(x % factor for x in size) or not all(3 <= x <= 16 for x in grid):
        raise SpaceError(
            f"The image {imgkeys[0]!r} is {size[0]}x{size[1]}, but {stages} halvings must leave 3 "
            f"to 16 pixels a side: resize it to multiples of {factor} from {3 * factor} to "
            f"{16 * factor}, such as {4 * factor}x{4 * factor}."
        )
    assert math.prod(grid) > 0, grid
    return grid
