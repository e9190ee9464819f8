import functools

import jax
import jax.numpy as jnp
import ninjax as nj
import numpy as np
import optax
import pytest

from embodied.jax import nets, opt, utils

f32 = jnp.float32

METRICS = {
    f"opt/{x}"
    for x in ("loss", "updates", "grad_norm", "grad_rms", "update_rms", "param_rms", "param_count")
}


@pytest.fixture(autouse=True)
def _float32(monkeypatch):
    monkeypatch.setattr(nets, "COMPUTE_DTYPE", f32)


class Point(nj.Module):
    """One parameter x [3], which starts at 1, 2, 3."""

    def __call__(self):
        return self.value("kernel", jnp.array, [1.0, 2.0, 3.0])


class Other(nj.Module):
    """Parameters that no optimizer may touch, and a count of calls."""

    def __call__(self):
        self.write("calls", self.value("calls", jnp.zeros, (), jnp.int32) + 1)
        return self.value("kernel", jnp.array, [1.0, 2.0, 3.0])


class Problem:
    """A compiled update of `loss(point, other, scale)` by an optimizer."""

    def __init__(self, rule, loss=None, has_aux=False):
        def square(point, other, scale):
            return scale * jnp.square(point() - 0.1 * other()).sum()

        def update(scale):
            point, other = Point(name="point"), Other(name="other")
            optimizer = opt.Optimizer(point, rule, name="opt")
            fun = functools.partial(loss or square, point, other)
            return optimizer(fun, scale, has_aux=has_aux)

        self.pure = nj.pure(update)
        self.init = jax.jit(functools.partial(self.pure, create=True))
        self.step = jax.jit(self.pure)

    def run(self, steps, scale=1.0):
        state, result = self.init({}, scale, seed=0)
        for _ in range(steps - 1):
            state, result = self.step(state, scale)
        return state, result


class TestOptimizer:
    def test_finds_the_minimum_of_its_own_parameters(self):
        state, metrics = Problem(opt.chain(0.03, agc=0, warmup=0)).run(300)
        np.testing.assert_allclose(state["point/kernel"], [0.1, 0.2, 0.3], atol=0.02)
        assert state["other/kernel"].tolist() == [1, 2, 3]
        assert float(metrics["opt/loss"]) < 1e-2
        assert int(metrics["opt/updates"]) == int(state["opt/step/value"]) == 300

    def test_metrics(self):
        state, metrics = Problem(optax.sgd(0.1)).run(1)
        grads = 2 * np.array([0.9, 1.8, 2.7])
        assert set(metrics) == METRICS
        wanted = {
            "loss": 0.25 * (grads**2).sum(),
            "updates": 1,
            "grad_norm": np.linalg.norm(grads),
            "grad_rms": np.sqrt((grads**2).mean()),
            "update_rms": 0.1 * np.sqrt((grads**2).mean()),
            "param_rms": np.sqrt((np.array(state["point/kernel"]) ** 2).mean()),
            "param_count": 3,
        }
        for key, value in wanted.items():
            assert float(metrics[f"opt/{key}"]) == pytest.approx(value, rel=1e-5), key
        np.testing.assert_allclose(state["point/kernel"], [1, 2, 3] - 0.1 * grads, rtol=1e-5)

    def test_aux_and_state_of_the_loss(self):
        def loss(point, other, scale):
            x = point() - other()
            return jnp.square(x).sum(), {"x": x, "calls": other.read("calls")}

        problem = Problem(optax.sgd(0.1), loss, has_aux=True)
        state, (metrics, aux) = problem.run(3)
        assert set(metrics) == METRICS
        assert aux["x"].tolist() == [0, 0, 0]
        assert int(aux["calls"]) == int(state["other/calls"]) == 3

    def test_loss_must_be_a_float32_scalar(self):
        for loss in (lambda *args: args[0](), lambda *args: args[0]().sum().astype(jnp.bfloat16)):
            with pytest.raises(AssertionError):
                Problem(optax.sgd(0.1), loss).run(1)

    def test_summary_of_the_parameters(self, capsys):
        def update(depth):
            model = nets.MLP(2, 1000, name="mlp")
            optimizer = opt.Optimizer(model, optax.sgd(0.1), summary_depth=depth, name="opt")
            return optimizer(lambda: model(jnp.ones(10)).sum())

        for depth in (1, 2):
            fun = nj.pure(functools.partial(update, depth))
            jax.eval_shape(functools.partial(fun, create=True, seed=0), {})
        one, two = capsys.readouterr().out.splitlines()
        assert one == "Optimizer has 1,014,000 parameters (mlp 1,014,000)."
        assert two.startswith("Optimizer has 1,014,000 parameters (mlp/linear0 11,000, mlp/lin")

    def test_seeds_reach_the_loss(self):
        def loss(point, other, scale):
            noise = jax.random.normal(nj.seed(), (3,))
            return jnp.square(point() - noise).sum(), noise

        problem = Problem(optax.sgd(0.1), loss, has_aux=True)
        state, _ = problem.init({}, 1.0, seed=0)
        first, second, again = (problem.step(state, 1.0, seed=i)[1][1] for i in (1, 2, 1))
        assert not np.allclose(first, second)
        np.testing.assert_array_equal(first, again)


class TestFloat16:
    @pytest.fixture(autouse=True)
    def _float16(self, monkeypatch):
        monkeypatch.setattr(nets, "COMPUTE_DTYPE", jnp.float16)

    def test_gradients_do_not_depend_on_the_scale(self, monkeypatch):
        state, metrics = Problem(optax.sgd(0.1)).run(3)
        monkeypatch.setattr(nets, "COMPUTE_DTYPE", f32)
        other, wanted = Problem(optax.sgd(0.1)).run(3)
        np.testing.assert_allclose(state["point/kernel"], other["point/kernel"], rtol=1e-5)
        for key in METRICS:
            assert float(metrics[key]) == pytest.approx(float(wanted[key]), rel=1e-4), key
        assert set(metrics) == {*METRICS, "opt/grad_scale", "opt/grad_overflow"}
        assert float(metrics["opt/grad_scale"]) == 1e4
        assert float(metrics["opt/grad_overflow"]) == 0

    def test_overflow_skips_the_update_and_halves_the_scale(self):
        problem = Problem(opt.chain(0.03, warmup=0))
        before, _ = problem.run(2)
        after, metrics = problem.step(before, np.inf)
        assert float(metrics["opt/grad_overflow"]) == 1
        assert float(metrics["opt/update_rms"]) == 0
        assert float(after.pop("opt/grad_scale/value")) == 5e3
        assert int(after.pop("opt/good_steps/value")) == 0
        assert int(after["other/calls"]) == int(before["other/calls"]) + 1
        for key in set(after) - {"other/calls"}:
            np.testing.assert_array_equal(after[key], before[key], err_msg=key)
        later, metrics = problem.step({**before, **after, "opt/grad_scale/value": f32(5e3)}, 1.0)
        assert int(metrics["opt/updates"]) == 3
        assert np.isfinite(later["point/kernel"]).all()

    @pytest.mark.parametrize(("scale", "wanted"), [(1e4, 2e4), (9e4, 1e5)])
    def test_scale_grows_after_a_thousand_good_updates(self, scale, wanted):
        problem = Problem(optax.sgd(0.1))
        state, _ = problem.run(1)
        state |= {"opt/grad_scale/value": f32(scale), "opt/good_steps/value": jnp.int32(999)}
        state, _ = problem.step(state, 1.0)
        assert float(state["opt/grad_scale/value"]) == scale
        state, _ = problem.step(state, 1.0)
        assert float(state["opt/grad_scale/value"]) == wanted
        assert int(state["opt/good_steps/value"]) == 0

    def test_scale_has_a_floor(self):
        problem = Problem(optax.sgd(0.1))
        state, _ = problem.run(1)
        state, _ = problem.step({**state, "opt/grad_scale/value": f32(1e-4)}, np.inf)
        assert float(state["opt/grad_scale/value"]) == pytest.approx(1e-4)


def updates(rule, params, grads, count=1):
    state = rule.init(params)
    for _ in range(count):
        found, state = rule.update(grads, state, params)
    return found


PARAMS = {"a/kernel": jnp.array([3.0, 4.0]), "a/bias": jnp.array([0.0, 0.0])}
GRADS = {"a/kernel": jnp.array([0.0, 10.0]), "a/bias": jnp.array([1e-4, 0.0])}


class TestRules:
    def test_adaptive_clipping(self):
        found = updates(opt.clip_by_agc(0.3, 1e-3), PARAMS, GRADS)
        np.testing.assert_allclose(found["a/kernel"], [0, 0.3 * 5], rtol=1e-6)
        np.testing.assert_allclose(found["a/bias"], [1e-4, 0], rtol=1e-6)
        small = updates(opt.clip_by_agc(0.3, 1e-4), PARAMS, GRADS)
        np.testing.assert_allclose(small["a/bias"], [3e-5, 0], rtol=1e-6)
        assert updates(opt.clip_by_agc(0), PARAMS, GRADS)["a/kernel"].tolist() == [0, 10]

    def test_rms_makes_constant_gradients_unit_sized(self):
        for count in (1, 5):
            found = updates(opt.scale_by_rms(0.9, 1e-20), PARAMS, GRADS, count)
            np.testing.assert_allclose(found["a/kernel"], [0, 1], rtol=1e-5)
            np.testing.assert_allclose(found["a/bias"], [1, 0], rtol=1e-5)

    def test_momentum_of_constant_gradients(self):
        for count in (1, 5):
            found = updates(opt.scale_by_momentum(0.9), PARAMS, GRADS, count)
            np.testing.assert_allclose(found["a/kernel"], [0, 10], rtol=1e-5)
        ahead = updates(opt.scale_by_momentum(0.9, nesterov=True), PARAMS, GRADS)
        np.testing.assert_allclose(ahead["a/kernel"], [0, 19], rtol=1e-5)

    @pytest.mark.parametrize(
        ("regex", "names"), [("/kernel$", ["a/kernel"]), ("a/", list(PARAMS))]
    )
    def test_weight_decay_of_matching_parameters(self, regex, names):
        params = jax.tree.map(lambda x: x + 1, PARAMS)
        kw = {"lr": 0.1, "warmup": 0}
        plain = updates(opt.chain(**kw), params, GRADS)
        decayed = updates(opt.chain(**kw, wd=0.5, wdregex=regex), params, GRADS)
        for key, value in params.items():
            wanted = plain[key] - (0.1 * 0.5 * value if key in names else 0)
            np.testing.assert_allclose(decayed[key], wanted, rtol=1e-4)

    def test_chain_without_momentum(self):
        params, grads = {"x": jnp.ones(1)}, [{"x": jnp.array([x])} for x in (0.1, -0.1)]
        found = {}
        for momentum in (False, True):
            rule = opt.chain(0.1, momentum=momentum, warmup=0)
            state = rule.init(params)
            for grad in grads:
                found[momentum], state = rule.update(grad, state, params)
        assert float(found[False]["x"][0]) == pytest.approx(0.1, rel=1e-3)
        assert abs(float(found[True]["x"][0])) < 0.02

    def test_state_has_plain_names(self):
        state, _ = Problem(opt.chain()).run(1)
        names = {k for k in state if k.startswith("opt/state/")}
        wanted = {"1/0", "1/1/point/kernel", "2/0", "2/1/point/kernel", "3/count"}
        assert names == {f"opt/state/{x}" for x in wanted}


class TestSchedules:
    @pytest.mark.parametrize("schedule", ["const", "linear", "cosine"])
    def test_warmup(self, schedule):
        rate = opt.learning_rate(1e-2, schedule, warmup=10, anneal=110)
        assert [float(rate(i)) for i in (0, 5, 10)] == pytest.approx([0, 5e-3, 1e-2], abs=1e-8)
        assert float(opt.learning_rate(1e-2, schedule, 0, 100)(0)) == pytest.approx(1e-2)

    def test_course(self):
        at = lambda name, i: float(opt.learning_rate(1e-2, name, 10, 110)(i))  # noqa: E731
        assert at("const", 10**6) == pytest.approx(1e-2)
        assert at("linear", 60) == pytest.approx(5.5e-3)
        assert at("linear", 110) == at("linear", 10**6) == pytest.approx(1e-3)
        assert at("cosine", 60) == pytest.approx(5e-3, rel=1e-2)
        assert at("cosine", 110) == at("cosine", 10**6) == pytest.approx(1e-5)
        with pytest.raises(AssertionError):
            opt.learning_rate(1e-2, "step", 0, 0)


def test_normalizer_inside_the_loss_keeps_its_update():
    def update():
        point, norm = Point(name="point"), utils.Normalize("meanstd", rate=0.5, name="norm")

        def loss():
            return jnp.square(point() - norm(jnp.array([2.0, 4.0]), update=True)[0]).sum()

        return opt.Optimizer(point, optax.sgd(0.1), name="opt")(loss)

    state, _ = nj.pure(update)({}, seed=0, create=True)
    assert float(state["norm/mean/value"]) == 1.5
    state, _ = jax.jit(nj.pure(update))(state)
    assert float(state["norm/mean/value"]) == 2.25
    np.testing.assert_allclose(state["point/kernel"], [1.72, 2.36, 3.0], rtol=1e-5)
