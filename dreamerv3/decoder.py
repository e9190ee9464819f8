"""The decoder: features of the world model back to observations."""

import math
from typing import Any

import elements
import jax
import jax.numpy as jnp
import ninjax as nj
import numpy as np

from embodied.core.errors import ConfigError
from embodied.core.spaces import is_classes
from embodied.jax import blocks, heads, nets, outs

from . import observations

f32 = jnp.float32

Tree = Any


class Decoder(nj.Module):
    """Predicts vectors with an MLP and images with an upsampling network for each size.

    It keeps no state over time, so its carry and its entries are empty. Where images differ in
    size, their layers are named after it, such as `64x96_conv0`.

    Args:
      units, layers, norm, act: of the MLP.
      depth, mults, kernel: channels, their multiple per stage, and the window of the convolutions.
      bspace: blocks that map deter to the smallest grid; 0 for one dense map of all features.
      outscale: scale of the last layers' initial kernels.
      outer: whether the last stage keeps its resolution.
      strided: whether transposed convolutions grow the image, in place of repeating pixels.
    """

    units: int = 1024
    norm: str = "rms"
    act: str = "silu"
    outscale: float = 1.0
    depth: int = 64
    mults: tuple = (2, 3, 4, 4)
    layers: int = 3
    kernel: int = 5
    bspace: int = 8
    outer: bool = False
    strided: bool = False
    winit: str = "trunc_normal_in"

    def __init__(self, obs_space: dict[str, elements.Space]):
        self.obs_space = obs_space
        self.veckeys, self.imgkeys = observations.split(obs_space)
        self.groups = observations.group_images(obs_space, self.imgkeys, self.mults, self.outer)
        depth = self.depth * self.mults[-1]
        if self.groups and self.bspace and depth % self.bspace:
            raise ConfigError(
                f"The decoder's last stage has {depth} channels, which bspace {self.bspace} does "
                "not divide: choose a divisor, or 0 for a dense map."
            )

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
        self, carry: Tree, feat: Tree, reset: jax.Array, training: bool, single: bool = False
    ) -> tuple[Tree, Tree, dict[str, outs.Output]]:
        """Decodes features `{deter [B, T, D], stoch [B, T, S, C]}`, without T if `single`.

        Returns:
          Carry and entries, both empty, and one output per observation key; images are in 0..1.
        """
        bshape = reset.shape
        deter, stoch = nets.cast((feat["deter"], feat["stoch"]))
        deter = deter.reshape((-1, deter.shape[-1]))
        stoch = stoch.reshape((-1, math.prod(stoch.shape[-2:])))
        recons: dict[str, outs.Output] = {}
        if self.veckeys:
            recons.update(self._vectors(deter, stoch, bshape))
        for group in self.groups:
            channels = [self.obs_space[k].shape[-1] for k in group.keys]
            image = self._image(deter, stoch, group, sum(channels))
            image = image.reshape((*bshape, *image.shape[1:]))
            ends = np.cumsum(channels)[:-1]
            for key, part in zip(group.keys, jnp.split(image, ends, -1), strict=True):
                recons[key] = outs.Agg(outs.MSE(part), 3)
        return carry, {}, recons

    def target(self, key: str, value: jax.Array) -> jax.Array:
        """What the output of a key is compared to: an image in 0..1, class indices, or numbers."""
        space = self.obs_space[key]
        if key in self.imgkeys:
            return observations.scale_image(space, value.astype(f32))
        return blocks.to_classes(value, space) if is_classes(space) else value

    def _vectors(self, deter, stoch, bshape):
        spaces = {k: self.obs_space[k] for k in self.veckeys}
        outputs = {k: "categorical" if is_classes(v) else "symlog_mse" for k, v in spaces.items()}
        x = jnp.concatenate([stoch, deter], -1)
        kw: dict[str, Any] = {"act": self.act, "norm": self.norm, "winit": self.winit}
        x = self.sub("mlp", blocks.MLP, self.layers, self.units, **kw)(x)
        x = x.reshape((*bshape, x.shape[-1]))
        kw = {"outscale": self.outscale, "winit": self.winit}
        return self.sub("vec", heads.DictHead, spaces, outputs, **kw)(x)

    def _image(self, deter, stoch, group, channels):
        layout, prefix = group.layout, group.prefix
        depths = [self.depth * mult for mult in layout.mults]
        space = self._blockspace if self.bspace else self._densespace
        x = space(deter, stoch, prefix, (*layout.grid, depths[-1]))
        for i, depth in reversed(list(enumerate(depths[:-1]))):
            name = f"{prefix}conv{i}"
            x = self._grow(name, x, depth, layout.factors[i + 1])
            x = nets.act(self.act)(self.sub(f"{name}norm", nets.Norm, self.norm)(x))
        x = self._grow(f"{prefix}imgout", x, channels, layout.factors[0], outscale=self.outscale)
        (top, _), (left, _) = layout.pads
        height, width = layout.size
        return jax.nn.sigmoid(x[:, top : top + height, left : left + width])

    def _blockspace(self, deter, stoch, prefix, shape):
        """Smallest grid [B, h, w, C]: deter gives each group of channels its own map."""
        height, width, depth = shape
        kw, name = {"winit": self.winit}, f"{prefix}sp"
        x0 = self.sub(f"{name}0", nets.BlockLinear, math.prod(shape), self.bspace, **kw)(deter)
        x0 = x0.reshape((-1, self.bspace, height, width, depth // self.bspace))
        x0 = x0.transpose((0, 2, 3, 1, 4)).reshape((-1, *shape))
        x1 = self.sub(f"{name}1", nets.Linear, 2 * self.units, **kw)(stoch)
        x1 = nets.act(self.act)(self.sub(f"{name}1norm", nets.Norm, self.norm)(x1))
        x1 = self.sub(f"{name}2", nets.Linear, shape, **kw)(x1)
        return nets.act(self.act)(self.sub(f"{name}norm", nets.Norm, self.norm)(x0 + x1))

    def _densespace(self, deter, stoch, prefix, shape):
        """Smallest grid [B, h, w, C] by one dense map of all features."""
        name = f"{prefix}space"
        x = jnp.concatenate([stoch, deter], -1)
        x = self.sub(name, nets.Linear, shape, winit=self.winit)(x)
        return nets.act(self.act)(self.sub(f"{name}norm", nets.Norm, self.norm)(x))

    def _grow(self, name, x, depth, factor, **kw):
        """Multiplies height and width, with a convolution."""
        kw["winit"] = self.winit
        if self.strided:
            return self.sub(name, nets.Conv2D, depth, self.kernel, factor, transp=True, **kw)(x)
        x = x.repeat(factor[1], -2).repeat(factor[0], -3)
        return self.sub(name, nets.Conv2D, depth, self.kernel, **kw)(x)
