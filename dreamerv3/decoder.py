"""The decoder: features of the world model back to observations."""

import math
from typing import Any

import elements
import jax
import jax.numpy as jnp
import ninjax as nj

from embodied.core.errors import ConfigError
from embodied.jax import blocks, heads, nets, outs

from .encoder import minimal_grid, split_keys

Tree = Any


class Decoder(nj.Module):
    """Predicts vectors with an MLP and images with an upsampling convolutional network.

    It keeps no state over time, so its carry and its entries are empty.

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
        self.veckeys, self.imgkeys = split_keys(obs_space)
        self.depths = tuple(self.depth * mult for mult in self.mults)
        if self.imgkeys:
            stages = len(self.depths) - int(self.outer)
            self.grid = minimal_grid(obs_space, self.imgkeys, stages)
            self.channels = [obs_space[k].shape[-1] for k in self.imgkeys]
            if self.bspace and self.depths[-1] % self.bspace:
                raise ConfigError(
                    f"The decoder's last stage has {self.depths[-1]} channels, which bspace "
                    f"{self.bspace} does not divide: choose a divisor, or 0 for a dense map."
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
        if self.imgkeys:
            image = self._image(deter, stoch)
            image = image.reshape((*bshape, *image.shape[1:]))
            ends = [sum(self.channels[: i + 1]) for i in range(len(self.channels) - 1)]
            for key, part in zip(self.imgkeys, jnp.split(image, ends, -1), strict=True):
                recons[key] = outs.Agg(outs.MSE(part), 3)
        return carry, {}, recons

    def _vectors(self, deter, stoch, bshape):
        spaces = {k: self.obs_space[k] for k in self.veckeys}
        outputs = {k: "categorical" if v.discrete else "symlog_mse" for k, v in spaces.items()}
        x = jnp.concatenate([stoch, deter], -1)
        kw: dict[str, Any] = {"act": self.act, "norm": self.norm, "winit": self.winit}
        x = self.sub("mlp", blocks.MLP, self.layers, self.units, **kw)(x)
        x = x.reshape((*bshape, x.shape[-1]))
        kw = {"outscale": self.outscale, "winit": self.winit}
        return self.sub("vec", heads.DictHead, spaces, outputs, **kw)(x)

    def _image(self, deter, stoch):
        x = self._blockspace(deter, stoch) if self.bspace else self._densespace(deter, stoch)
        for i, depth in reversed(list(enumerate(self.depths[:-1]))):
            x = self._grow(f"conv{i}", x, depth)
            x = nets.act(self.act)(self.sub(f"conv{i}norm", nets.Norm, self.norm)(x))
        kw: dict[str, Any] = {"outscale": self.outscale}
        depth = sum(self.channels)
        if self.outer:
            kw["winit"] = self.winit
            x = self.sub("imgout", nets.Conv2D, depth, self.kernel, **kw)(x)
        else:
            x = self._grow("imgout", x, depth, **kw)
        return jax.nn.sigmoid(x)

    def _blockspace(self, deter, stoch):
        """Smallest grid [B, h, w, C]: deter gives each group of channels its own map."""
        height, width = self.grid
        depth = self.depths[-1]
        kw = {"winit": self.winit}
        units = height * width * depth
        x0 = self.sub("sp0", nets.BlockLinear, units, self.bspace, **kw)(deter)
        x0 = x0.reshape((-1, self.bspace, height, width, depth // self.bspace))
        x0 = x0.transpose((0, 2, 3, 1, 4)).reshape((-1, height, width, depth))
        x1 = self.sub("sp1", nets.Linear, 2 * self.units, **kw)(stoch)
        x1 = nets.act(self.act)(self.sub("sp1norm", nets.Norm, self.norm)(x1))
        x1 = self.sub("sp2", nets.Linear, (height, width, depth), **kw)(x1)
        return nets.act(self.act)(self.sub("spnorm", nets.Norm, self.norm)(x0 + x1))

    def _densespace(self, deter, stoch):
        """Smallest grid [B, h, w, C] by one dense map of all features."""
        x = jnp.concatenate([stoch, deter], -1)
        shape = (*self.grid, self.depths[-1])
        x = self.sub("space", nets.Linear, shape, winit=self.winit)(x)
        return nets.act(self.act)(self.sub("spacenorm", nets.Norm, self.norm)(x))

    def _grow(self, name, x, depth, **kw):
        """Doubles height and width, with a convolution."""
        kw["winit"] = self.winit
        if self.strided:
            return self.sub(name, nets.Conv2D, depth, self.kernel, 2, transp=True, **kw)(x)
        x = x.repeat(2, -2).repeat(2, -3)
        return self.sub(name, nets.Conv2D, depth, self.kernel, **kw)(x)
