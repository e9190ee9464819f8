"""The encoder: observations of one step to tokens, one vector."""

from typing import Any

import elements
import jax
import jax.numpy as jnp
import ninjax as nj

from embodied.jax import nets
from embodied.jax.blocks import DictConcat

from . import observations

f32 = jnp.float32

Tree = Any


class Encoder(nj.Module):
    """Vectors go through an MLP, images through a convolutional network for each size.

    It keeps no state over time, so its carry and its entries are empty. Where images differ in
    size, their layers are named after it, such as `64x96_cnn0`.

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
        self.veckeys, self.imgkeys = observations.split(obs_space)
        self.groups = observations.group_images(obs_space, self.imgkeys, self.mults, self.outer)

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
        for group in self.groups:
            images = [
                observations.scale_image(self.obs_space[k], obs[k].astype(f32)) - 0.5
                for k in group.keys
            ]
            x = nets.cast(jnp.concatenate(images, -1))
            parts.append(self._cnn(x.reshape((-1, *x.shape[-3:])), group))
        tokens = jnp.concatenate(parts, -1)
        return carry, {}, tokens.reshape((*bshape, tokens.shape[-1]))

    def _mlp(self, x):
        for i in range(self.layers):
            x = self.sub(f"mlp{i}", nets.Linear, self.units, winit=self.winit)(x)
            x = nets.act(self.act)(self.sub(f"mlp{i}norm", nets.Norm, self.norm)(x))
        return x

    def _cnn(self, x, group):
        layout = group.layout
        x = jnp.pad(x, ((0, 0), *layout.pads, (0, 0)), mode="edge")
        for i, (mult, factor) in enumerate(zip(layout.mults, layout.factors, strict=True)):
            name, depth = f"{group.prefix}cnn{i}", self.depth * mult
            stride = factor if self.strided else 1
            x = self.sub(name, nets.Conv2D, depth, self.kernel, stride, winit=self.winit)(x)
            x = x if self.strided else _pool(x, factor)
            x = nets.act(self.act)(self.sub(f"{name}norm", nets.Norm, self.norm)(x))
        return x.reshape((x.shape[0], -1))


def _pool(x, factor):
    batch, height, width, depth = x.shape
    rows, columns = factor
    x = x.reshape((batch, height // rows, rows, width // columns, columns, depth))
    return x.max((2, 4))
