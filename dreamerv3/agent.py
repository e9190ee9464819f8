"""Dreamer: a world model learned from experience, and behaviour learned inside it.

`Agent(obs_space, act_space, config)` returns the wrapper of `embodied.jax`, which compiles, places
and feeds; this class is its `agent.model`, pure functions of parameters, carry, data and seed.
Shapes: B batch, T time, K starts per sequence, H imagination horizon.
"""

from typing import Any

import elements
import jax
import jax.numpy as jnp
import ninjax as nj
import numpy as np

import embodied.jax
from embodied.core.errors import ConfigError
from embodied.jax import heads, nets, opt, outs, utils
from embodied.jax.blocks import from_classes, to_classes

from . import actions, losses, observations, report, rssm

f32 = jnp.float32
sg = jax.lax.stop_gradient

Tree = Any
Arrays = dict[str, Any]

ENCODERS = {"simple": rssm.Encoder}
DYNAMICS = {"rssm": rssm.RSSM}
DECODERS = {"simple": rssm.Decoder}


class Agent(embodied.jax.Agent):
    """The DreamerV3 agent (Hafner et al. 2023).

    The carry of policy, train and report is `(enc_carry, dyn_carry, dec_carry, prevact)`, where
    prevact is the action before the next observation.

    Args:
      obs_space: spaces of the observations.
      act_space: spaces of the actions.
      config: the `agent` section of the config, with `replay_context` and `priosignal`.
    """

    def __init__(
        self,
        obs_space: dict[str, elements.Space],
        act_space: dict[str, elements.Space],
        config: elements.Config,
    ):
        self.obs_space, self.act_space, self.config = obs_space, act_space, config
        spaces = observations.inputs(obs_space)
        encoded = observations.select(spaces, config.enc["keys"], "agent.enc.keys")
        decoded = observations.select(spaces, config.dec["keys"], "agent.dec.keys")
        observations.check_names(decoded)
        actions.check(act_space)
        self.masks = actions.find_masks(config.action_mask, decoded, act_space)
        self.enc = _make(ENCODERS, "enc", config, encoded)
        self.dyn = _make(DYNAMICS, "dyn", config, act_space)
        self.dec = _make(DECODERS, "dec", config, decoded)
        outputs = {
            k: config.policy_dist_disc if v.discrete else config.policy_dist_cont
            for k, v in act_space.items()
        }
        self.rew = heads.MLPHead((), **config.rewhead, name="rew")
        self.con = heads.MLPHead((), **config.conhead, name="con")
        self.pol = heads.MLPHead(act_space, outputs, **config.policy, name="pol")
        self.val = heads.MLPHead((), **config.value, name="val")
        self.slowval = utils.SlowModel(
            heads.MLPHead((), **config.value, name="slowval"),
            source=self.val,
            **config.slowvalue,
        )
        self.retnorm = utils.Normalize(**config.retnorm, name="retnorm")
        self.valnorm = utils.Normalize(**config.valnorm, name="valnorm")
        self.advnorm = utils.Normalize(**config.advnorm, name="advnorm")
        self.modules = [self.dyn, self.enc, self.dec, self.rew, self.con, self.pol, self.val]
        self.opt = opt.Optimizer(self.modules, opt.chain(**config.opt), name="opt")
        scales = dict(config.loss_scales)
        rec = scales.pop("rec")
        self.scales = {**scales, **dict.fromkeys(decoded, rec)}

    @property
    def policy_keys(self) -> str:
        """Regex of the parameters that acting needs."""
        return "^(enc|dyn|dec|pol)/"

    @property
    def ext_space(self) -> dict[str, elements.Space]:
        """What train and report need besides observations and actions."""
        spaces = {
            "consec": elements.Space(np.int32),
            "stepid": elements.Space(np.uint8, 20),
        }
        if self.config.replay_context:
            for name, module in self._stateful().items():
                spaces.update({f"{name}/{k}": v for k, v in module.entry_space.items()})
        return spaces

    def init_policy(self, batch_size: int) -> Tree:
        """The carry at the start of `batch_size` episodes."""
        zeros = lambda x: jnp.zeros((batch_size, *x.shape), x.dtype)  # noqa: E731
        return (
            self.enc.initial(batch_size),
            self.dyn.initial(batch_size),
            self.dec.initial(batch_size),
            {k: zeros(v) for k, v in self.act_space.items()},
        )

    def init_train(self, batch_size: int) -> Tree:
        """As `init_policy`."""
        return self.init_policy(batch_size)

    def init_report(self, batch_size: int) -> Tree:
        """As `init_policy`."""
        return self.init_policy(batch_size)

    def policy(self, carry: Tree, obs: Arrays, mode: str = "train") -> tuple[Tree, Arrays, Arrays]:
        """Acts on observations [B, ...], by a draw from the policy in every mode.

        Returns:
          Carry, actions, and outputs: the entries of this step for the replay.
        """
        enc_carry, dyn_carry, dec_carry, prevact = carry
        reset = obs["is_first"]
        kw = {"training": False, "single": True}
        enc_carry, enc_entry, tokens = self.enc(enc_carry, obs, reset, **kw)
        dyn_carry, dyn_entry, feat = self.dyn.observe(dyn_carry, tokens, prevact, reset, **kw)
        dec_entry: Arrays = {}
        if dec_carry:
            dec_carry, dec_entry, _ = self.dec(dec_carry, feat, reset, **kw)
        policy = self.pol(rssm.feat2tensor(feat), bdims=1)
        action = self.sample(actions.apply_masks(policy, obs, self.masks))
        outputs = {}
        if self.config.replay_context:
            entries = {"enc": enc_entry, "dyn": dyn_entry, "dec": dec_entry}
            outputs.update(_flatten(entries))
        return (enc_carry, dyn_carry, dec_carry, action), action, outputs

    def train(self, carry: Tree, data: Arrays) -> tuple[Tree, Arrays, Arrays]:
        """Makes one update on `data` [B, T + replay_context, ...].

        Returns:
          Carry, outputs (`replay`: fresh entries by step id, and priorities) and metrics.
        """
        carry, obs, prevact, stepid = self._split_context(carry, data)
        metrics, (carry, entries, outputs, more) = self.opt(
            self.loss, carry, obs, prevact, training=True, has_aux=True
        )
        self.slowval.update()
        metrics.update(more)
        replay = {"stepid": stepid}
        if self.config.replay_context:
            replay.update(_flatten(dict(zip(("enc", "dyn", "dec"), entries, strict=True))))
        if self.config.priosignal:
            replay["priority"] = outputs["priority"]
        carry = (*carry, {k: data[k][:, -1] for k in self.act_space})
        return carry, ({"replay": replay} if len(replay) > 1 else {}), metrics

    def report(self, carry: Tree, data: Arrays) -> tuple[Tree, Arrays]:
        """The losses on held-out data, open-loop videos and, by config, gradient norms."""
        if not self.config.report:
            return carry, {}
        carry, obs, prevact, _ = self._split_context(carry, data)
        _, (new_carry, _, outputs, metrics) = self.loss(carry, obs, prevact, training=False)
        if self.config.report_gradnorms:
            metrics.update(report.gradnorms(self, carry, obs, prevact))
        metrics.update(report.openloop(self, carry, outputs["tokens"], obs, prevact))
        carry = (*new_carry, {k: data[k][:, -1] for k in self.act_space})
        return carry, metrics

    def loss(
        self, carry: Tree, obs: Arrays, prevact: Arrays, training: bool
    ) -> tuple[jax.Array, tuple[Tree, Tree, Arrays, Arrays]]:
        """The total loss on sequences [B, T, ...].

        Args:
          carry: `(enc_carry, dyn_carry, dec_carry)` before the first step.
          obs: observations, flags and rewards.
          prevact: the action before each observation.
          training: whether normalisers are updated.

        Returns:
          Scalar loss, and `(carry, entries, outputs, metrics)`.
        """
        enc_carry, dyn_carry, dec_carry = carry
        reset = obs["is_first"]
        enc_carry, enc_entries, tokens = self.enc(enc_carry, obs, reset, training)
        dyn_carry, dyn_entries, terms, feat, metrics = self.dyn.loss(
            dyn_carry, tokens, prevact, reset, training
        )
        dec_carry, dec_entries, recons = self.dec(dec_carry, feat, reset, training)
        terms.update(self._model_losses(obs, feat, recons))
        model_terms = list(terms)
        imagined, ret, more = self._imagination_losses(dyn_entries, feat, training)
        terms.update(imagined)
        metrics.update(more)
        if self.config.repval_loss:
            terms.update(self._replay_losses(obs, feat, ret, training))
        assert set(terms) <= set(self.scales), (sorted(terms), sorted(self.scales))
        metrics.update({f"loss/{k}": v.mean() for k, v in terms.items()})
        total = sum(v.mean() * self.scales[k] for k, v in terms.items())
        carry = (enc_carry, dyn_carry, dec_carry)
        entries = (enc_entries, dyn_entries, dec_entries)
        outputs = {"tokens": tokens, "feat": feat, "losses": terms, "ret": ret}
        if self.config.priosignal:
            outputs["priority"] = sg(sum(self.scales[k] * terms[k] for k in model_terms))
        return total, (carry, entries, outputs, metrics)

    def sample(self, policy: dict[str, outs.Output]) -> Arrays:
        """Draws one action per key, of the action space's shape and dtype."""

        def one(key, output):
            action = output.sample(nj.seed(optional=True))
            space = self.act_space[key]
            if space.discrete and action.ndim > output.entropy().ndim + len(space.shape):
                action = action.argmax(-1)
            return from_classes(action, space) if space.discrete else action.astype(space.dtype)

        return {k: one(k, v) for k, v in policy.items()}

    def _model_losses(self, obs, feat, recons):
        """Reward, continuation and reconstruction losses [B, T]."""
        config, terms = self.config, {}
        inp = rssm.feat2tensor(feat)
        rew_inp = inp if config.reward_grad else sg(inp)
        terms["rew"] = self.rew(rew_inp, 2).loss(obs["reward"].astype(f32))
        con = (~obs["is_terminal"]).astype(f32)
        if config.contdisc:
            con *= 1 - 1 / config.horizon
        terms["con"] = self.con(inp, 2).loss(con)
        for key, recon in recons.items():
            terms[key] = recon.loss(self.dec.target(key, obs[key]))
        return terms

    def _imagination_losses(self, entries, feat, training):
        """Policy and value losses [B, K] of trajectories that start in the last K states."""
        config, spaces = self.config, self.act_space
        batch, time = feat["deter"].shape[:2]
        count = min(config.imag_last or time, time)
        starts = self.dyn.starts(entries, count)

        def policy(feat):
            legal = self._predict_masks(feat)
            dist = actions.apply_masks(self.pol(rssm.feat2tensor(feat), 1), legal, self.masks)
            return {**self.sample(dist), **legal}

        def rollout(starts):
            _, feat, action = self.dyn.imagine(starts, policy, config.imag_length, training)
            last = policy(jax.tree.map(lambda x: x[:, -1], feat))
            return feat, {k: jnp.concatenate([v, last[k][:, None]], 1) for k, v in action.items()}

        # No gradient flows along a trajectory, so none needs to be recorded while it is made.
        imagined, act = utils.frozen(rollout, sg(starts))
        first = {k: v[:, -count:].reshape((-1, 1, *v.shape[2:])) for k, v in feat.items()}
        first = first if config.ac_grads else sg(first)
        feat = {k: jnp.concatenate([first[k], imagined[k]], 1) for k in first}
        inp = rssm.feat2tensor(feat)
        terms, outputs, metrics = losses.imag_loss(
            {k: to_classes(act[k], v) if v.discrete else act[k] for k, v in spaces.items()},
            self.rew(inp, 2).pred(),
            self.con(inp, 2).prob(jnp.ones(inp.shape[:2], f32)),
            # The masks are those that the actions were drawn with: predicted once more, they could
            # differ by rounding and forbid an action that was taken.
            actions.apply_masks(self.pol(inp, 2), act, self.masks),
            self.val(inp, 2),
            self.slowval(inp, 2),
            self.retnorm,
            self.valnorm,
            self.advnorm,
            update=training,
            contdisc=config.contdisc,
            horizon=config.horizon,
            **config.imag_loss,
        )
        terms = {k: v.mean(1).reshape((batch, count)) for k, v in terms.items()}
        return terms, outputs["ret"][:, 0].reshape((batch, count)), metrics

    def _predict_masks(self, feat):
        """The action masks, bool [N, ..., C] by name, that the decoder sees in features [N, ...].

        Whatever else it predicts is not used, so that compilers remove it.
        """
        if not self.masks:
            return {}
        reset = jnp.zeros(len(feat["deter"]), bool)
        kw = {"training": False, "single": True}
        _, _, recons = self.dec(self.dec.initial(len(reset)), feat, reset, **kw)
        return {k: recons[k].pred().astype(bool) for k in sorted(set(self.masks.values()))}

    def _replay_losses(self, obs, feat, ret, training):
        """Value loss [B, K-1] of the last K replayed states."""
        config, count = self.config, ret.shape[1]
        feat = feat if config.repval_grad else sg(feat)
        inp = rssm.feat2tensor({k: v[:, -count:] for k, v in feat.items()})
        last, term, rew = (obs[k][:, -count:] for k in ("is_last", "is_terminal", "reward"))
        terms, _ = losses.repl_loss(
            last,
            term,
            rew,
            boot=ret,
            value=self.val(inp, 2),
            slowvalue=self.slowval(inp, 2),
            valnorm=self.valnorm,
            update=training,
            horizon=config.horizon,
            **config.repl_loss,
        )
        return terms

    def _split_context(self, carry, data):
        """Cuts off the context steps; a sequence's first cut starts from their stored entries.

        Returns:
          `(enc_carry, dyn_carry, dec_carry)`, observations, the action before each observation,
          and step ids, all [B, T, ...].
        """
        *carries, prevact = carry
        count = self.config.replay_context
        obs = {k: data[k][:, count:] for k in self.obs_space}
        if not count:
            before = {k: prevact[k][:, None] for k in self.act_space}
            prevact = {k: jnp.concatenate([before[k], data[k][:, :-1]], 1) for k in self.act_space}
            return tuple(carries), obs, prevact, data["stepid"]
        prevact = {k: data[k][:, count - 1 : -1] for k in self.act_space}
        first = data["consec"][:, 0] == 0
        stored = []
        for name, module in self._stateful().items():
            entries = {k: data[f"{name}/{k}"][:, :count] for k in module.entry_space}
            stored.append(module.truncate(entries) if entries else {})
        carries = nets.where(first, tuple(stored), tuple(carries))
        return carries, obs, prevact, data["stepid"][:, count:]

    def _stateful(self):
        return {"enc": self.enc, "dyn": self.dyn, "dec": self.dec}


def _flatten(entries):
    return {f"{name}/{k}": v.astype(f32) for name, xs in entries.items() for k, v in xs.items()}


def _make(table, name, config, spaces):
    typ = config[name].typ
    if typ not in table:
        raise ConfigError(f"agent.{name}.typ is {typ!r}; right would be one of {sorted(table)}.")
    return table[typ](spaces, **config[name][typ], name=name)
