"""A description of the model that a config asks for, without building it; no JAX."""

from __future__ import annotations

from collections.abc import Iterator

import elements

from embodied import envs

from .observations import Layout, layout
from .validate import notes, problems

Rows = list[tuple[str, object]]


def summarize(config: elements.Config, warnings: list[str] | None = None) -> str:
    """Describes a config's model in sections of aligned lines.

    Args:
      config: a composed config; it need not be valid, since what is wrong becomes a warning.
      warnings: more warnings to print.
    """
    found = [*(warnings or []), *problems(config), *_doubts(config)]
    sections = {
        "Platform and dtype": _platform(config.jax),
        "RSSM": _rssm(config.agent.dyn.rssm),
        "Encoder": _encoder(config),
        "Decoder": _decoder(config),
        "Heads": _heads(config.agent),
        "Loss scales": list(config.agent.loss_scales.items()),
        "Rollout and batch": _rollout(config),
        "Warnings": [("-", warning) for warning in found] or [("-", "none")],
    }
    return "\n\n".join(f"{name}\n{_align(rows)}" for name, rows in sections.items())


def _platform(jax: elements.Config) -> Rows:
    dtype = jax.compute_dtype
    if dtype == "auto":
        dtype = {
            "auto": "auto: float32 on a CPU, bfloat16 on an accelerator",
            "cpu": "auto: float32",
        }.get(jax.platform, "auto: bfloat16")
    return [
        ("platform", jax.platform),
        ("compute dtype", dtype),
        ("jit", jax.jit),
        ("debug", jax.debug),
        ("preallocate memory", jax.prealloc),
        ("train devices", f"{_join(jax.train_devices)} (mesh {jax.train_mesh})"),
        ("policy devices", f"{_join(jax.policy_devices)} (mesh {jax.policy_mesh})"),
    ]


def _rssm(rssm: elements.Config) -> Rows:
    flat = rssm.stoch * rssm.classes
    return [
        ("deter", rssm.deter),
        ("hidden", rssm.hidden),
        ("stoch x classes", f"{rssm.stoch} x {rssm.classes} = {flat}"),
        ("feature size", f"{rssm.deter} + {flat} = {rssm.deter + flat}"),
        ("blocks", f"{rssm.blocks} of {rssm.deter / max(1, rssm.blocks):g}"),
        (
            "layers",
            f"core {rssm.dynlayers}, prior {rssm.imglayers}, posterior {rssm.obslayers}",
        ),
        ("unimix", rssm.unimix),
        ("free nats", rssm.free_nats),
        ("act, norm", f"{rssm.act}, {rssm.norm}"),
    ]


def _encoder(config: elements.Config) -> Rows:
    enc = config.agent.enc.simple
    images = _layout(config, enc)
    depths, grid = _depths(enc, images), images.grid
    return [
        ("keys", config.agent.enc["keys"]),
        ("vectors", f"{enc.layers} x {enc.units}{' of symlog' if enc.symlog else ''}"),
        ("image channels", _join(depths)),
        ("kernel", f"{enc.kernel}{' strided' if enc.strided else ' with max-pooling'}"),
        ("image grid", f"{_cross(images.size)}{_padding(images)} -> {_cross(grid)}"),
        ("image tokens", f"{_cross(grid)} x {depths[-1]} = {grid[0] * grid[1] * depths[-1]}"),
    ]


def _decoder(config: elements.Config) -> Rows:
    dec = config.agent.dec.simple
    images = _layout(config, dec)
    return [
        ("keys", config.agent.dec["keys"]),
        ("vectors", f"{dec.layers} x {dec.units}"),
        ("image channels", _join(tuple(reversed(_depths(dec, images))))),
        ("kernel", f"{dec.kernel}{' transposed' if dec.strided else ' after upsampling'}"),
        ("image grid", f"{_cross(images.grid)} -> {_cross(images.size)}{_padding(images)}"),
        ("bspace", dec.bspace or "0: one dense layer"),
    ]


def _heads(agent: elements.Config) -> Rows:
    def layers(head: elements.Config) -> str:
        return f"{head.layers} x {head.units}"

    return [
        ("reward", f"{agent.rewhead.output}, {agent.rewhead.bins} bins, {layers(agent.rewhead)}"),
        ("continue", f"{agent.conhead.output}, {layers(agent.conhead)}"),
        ("value", f"{agent.value.output}, {agent.value.bins} bins, {layers(agent.value)}"),
        ("policy", layers(agent.policy)),
        ("discrete actions", f"{agent.policy_dist_disc}, unimix {agent.policy.unimix}"),
        ("action mask", agent.action_mask or "none"),
        (
            "continuous actions",
            f"{agent.policy_dist_cont}, std {agent.policy.minstd} to {agent.policy.maxstd}",
        ),
    ]


def _rollout(config: elements.Config) -> Rows:
    agent, batch, length = config.agent, config.batch_size, config.batch_length
    starts = min(agent.imag_last or length, length)
    discount = "in the continue head" if agent.contdisc else "in the return"
    return [
        ("batch", f"{batch} x {length} steps, after {config.replay_context} of context"),
        ("report length", config.report_length),
        ("imagined steps", agent.imag_length),
        ("imagined states", f"{batch} x {starts} x {agent.imag_length} per update"),
        ("horizon", f"{agent.horizon}, discount {1 - 1 / max(1, agent.horizon):.5g} {discount}"),
        ("lambda", f"imagined {agent.imag_loss.lam}, replayed {agent.repl_loss.lam}"),
        ("entropy weight", agent.imag_loss.actent),
        ("environments", config.run.envs),
        ("updates", notes(config)[0]),
    ]


def _doubts(config: elements.Config) -> Iterator[str]:
    jax = config.jax
    if jax.platform == "cpu" and jax.compute_dtype in ("bfloat16", "float16"):
        yield f"{jax.compute_dtype} is slow on a CPU: float32 or auto is better there."
    if not jax.jit:
        yield "jax.jit False runs every operation by itself, which is very slow."


def _layout(config: elements.Config, net: elements.Config) -> Layout:
    # Suites without a setting, or with 0, leave the size to the environment: show the usual one.
    suite = config.env.get(envs.section(config.task), {})
    height, width = (side or 64 for side in suite.get("size", (64, 64)))
    return layout((height, width), tuple(net.mults), net.outer)


def _depths(net: elements.Config, images: Layout) -> tuple[int, ...]:
    return tuple(net.depth * mult for mult in images.mults)


def _padding(images: Layout) -> str:
    padded = [side + sum(pad) for side, pad in zip(images.size, images.pads, strict=True)]
    return f" (padded to {_cross(tuple(padded))})" if tuple(padded) != images.size else ""


def _cross(sides: tuple[int, ...]) -> str:
    return " x ".join(map(str, sides))


def _join(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))


def _align(rows: Rows) -> str:
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name.ljust(width)}  {value}" for name, value in rows)
