"""What a report shows of the world model: open-loop videos and gradient norms of single losses."""

from typing import Any

import jax
import jax.numpy as jnp
import ninjax as nj
import optax

i32 = jnp.int32
u8 = jnp.uint8

ROWS = 6
BORDER = 2
PAUSE = 10
GREEN, RED = (0, 255, 0), (255, 0, 0)


def openloop(
    model: Any, carry: Any, tokens: jax.Array, obs: dict, prevact: dict
) -> dict[str, jax.Array]:
    """Predictions of images after the first half of each sequence, beside what happened.

    Args:
      model: the agent's model, with `dyn` and `dec`.
      carry: `(enc_carry, dyn_carry, dec_carry)` before the first step.
      tokens: encoded observations [B, T, E].
      obs: observations [B, T, ...].
      prevact: the action before each observation [B, T, ...].

    Returns:
      `openloop/<key>` per image: uint8 [T', H', W', C], where each column is a sequence and its
      rows are truth, prediction and error; its border is green as long as the model sees the
      observations and red from then on, and black frames close the video.
    """
    if not model.dec.imgkeys:
        return {}
    time = tokens.shape[1]
    half = time // 2
    rows = jax.tree.map(lambda x: x[:ROWS], (carry, tokens, obs, prevact))
    (_, dyn_carry, dec_carry), tokens, obs, prevact = rows
    seen, unseen = (
        jax.tree.map(lambda x, cut=cut: x[:, cut], (tokens, prevact, obs["is_first"]))
        for cut in (slice(None, half), slice(half, None))
    )
    feats = []
    if half:
        dyn_carry, _, feat = model.dyn.observe(dyn_carry, *seen, training=False)
        feats.append(feat)
    _, feat, _ = model.dyn.imagine(dyn_carry, unseen[1], time - half, training=False)
    feats.append(feat)
    feat = {k: jnp.concatenate([x[k] for x in feats], 1) for k in feats[0]}
    _, _, recons = model.dec(dec_carry, feat, obs["is_first"], training=False)
    return {
        f"openloop/{key}": video_grid(model.dec.target(key, obs[key]), recons[key].pred(), half)
        for key in model.dec.imgkeys
    }


def video_grid(true: jax.Array, pred: jax.Array, half: int) -> jax.Array:
    """Stacks truth, prediction and error, with a border that tells when prediction begins.

    Args:
      true: float [B, T, H, W, C] in 0..1.
      pred: likewise.
      half: number of frames that were seen.

    Returns:
      uint8 [T + pause, 3 H + 2 border, B (W + 2 border), C].
    """
    true = jnp.round(true * 255).astype(u8)
    pred = jnp.clip(pred * 255, 0, 255).astype(u8)
    error = ((pred.astype(i32) - true.astype(i32) + 255) / 2).astype(u8)
    video = jnp.concatenate([true, pred, error], 2)
    batch, time, height, width, channels = video.shape
    colors = jnp.array([GREEN] * half + [RED] * (time - half), u8)
    colors = (
        colors
        if channels == 3
        else jnp.broadcast_to(colors.max(1, keepdims=True), (time, channels))
    )
    frame = jnp.broadcast_to(
        colors[None, :, None, None],
        (batch, time, height + 2 * BORDER, width + 2 * BORDER, channels),
    )
    video = frame.at[:, :, BORDER:-BORDER, BORDER:-BORDER].set(video)
    video = jnp.concatenate([video, jnp.zeros_like(video[:, :PAUSE])], 1)
    return video.transpose((1, 2, 0, 3, 4)).reshape((*video.shape[1:3], -1, channels))


def gradnorms(model: Any, carry: Any, obs: dict, prevact: dict) -> dict[str, jax.Array]:
    """Norm of the gradient of every single loss with respect to each module's parameters.

    Returns:
      `gradnorm/<loss>/<module>` scalars.
    """
    context = nj.context()
    if context.create:
        return {}
    prefixes = tuple(f"{x.path}/" for x in model.modules)
    params = {k: v for k, v in context.items() if k.startswith(prefixes)}
    rest = {k: v for k, v in context.items() if k not in params}
    pure = nj.pure(model.loss, nested=True)
    seed = nj.seed(optional=True)

    def forward(params):
        out = pure({**rest, **params}, carry, obs, prevact, training=False, seed=seed)[1]
        return {k: v.mean() for k, v in out[1][2]["losses"].items()}

    terms, pullback = jax.vjp(forward, params)
    metrics = {}
    for name in terms:
        (grads,) = pullback({k: jnp.full_like(v, k == name) for k, v in terms.items()})
        for module in model.modules:
            part = {k: v for k, v in grads.items() if k.startswith(f"{module.path}/")}
            metrics[f"gradnorm/{name}/{module.path}"] = optax.tree.norm(part)
    return metrics
