"""The whole agent on a set of spaces, against `<set>_det.npz`, `_det2.npz` and `_sampled.npz`.

Scalars and tensors (by their greatest entry) agree within 1e-4, gradients within 1e-3.

In the deterministic variants a draw is the most likely class. Where two classes are equally likely
up to rounding, the choice between them is rounding, too, and what follows from it is far off. So
what does not agree is computed once more with such ties decided the other way, and the line says
so if it agrees then.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from . import params as updated
from .models import WHOLE, Shifted, make_config, make_model, read_spaces
from .probe import Draws, Probe, flatten, replace
from .reference import Numbers
from .report import Report, error

TOLERANCE = 1e-4
GRADIENTS = 1e-3
TIE = 1e-5

# How many standard deviations continuous actions lie above their mean.
VARIANTS = {"det": 0.0, "det2": 0.5}


class Set:
    """A set's model and inputs.

    Args:
      folder: where the numbers lie.
      name: of the set.
    """

    def __init__(self, folder: Path, name: str):
        self.name = name
        self.inputs = Numbers.load(folder / f"{name}_inputs.npz")
        self.config = make_config("debug", **WHOLE)
        spaces = read_spaces(folder / f"{name}_spaces.json")
        self.model = make_model(*spaces, self.config, Shifted)
        self.params = self.inputs.under("params/").read()
        modules = tuple(f"{x.path}/" for x in self.model.modules)
        self.optimised = [k for k in self.params if k.startswith(modules)]
        self.probe = Probe(self.model, self.optimised)
        start = self.model.init_train(self.config.batch_size)
        self.carry = replace(start, {**flatten(start), **self.inputs.under("carry/").read()})
        count = len([x for x in self.inputs.heads() if x.startswith("batch")])
        self.batches = [self.inputs.under(f"batch{i}/").read() for i in range(count)]


def compare(folder: Path, name: str, report: Report) -> None:
    """Compares all files of a set; float32 must be the compute dtype."""
    data = Set(folder, name)
    for variant, shift in VARIANTS.items():
        file = folder / f"{name}_{variant}.npz"
        if file.exists():
            numbers = Numbers.load(file)
            Variant(data, f"{name}_{variant}", numbers, shift, report).compare()
            report.uncompared(file.name, numbers.unread)
    file = folder / f"{name}_sampled.npz"
    if file.exists():
        numbers = Numbers.load(file)
        plausible(data, f"{name}_sampled", numbers, report)
        report.uncompared(file.name, numbers.unread)
    report.uncompared(f"{name}_inputs.npz", data.inputs.unread - {"seed"})


class Variant:
    """One deterministic variant of a set; what its file lacks is not computed."""

    def __init__(self, data: Set, group: str, want: Numbers, shift: float, report: Report):
        self.data, self.group, self.want = data, group, want
        self.shift, self.report = shift, report

    def compare(self) -> None:
        """Compares everything."""
        heads = self.want.heads()
        for i in range(len(self.data.batches)):
            if f"loss{i}" in heads or f"grad{i}" in heads:
                self._attempt(lambda draws, report, i=i: self._loss(i, draws, report))
        self._training()
        if any(x.startswith("policy") for x in heads):
            self._attempt(self._policy)
        if any(x.startswith("report") for x in heads):
            self._attempt(self._report)

    def _attempt(self, compute: Callable[[Draws, Report], Any]) -> Any:
        """Computes and compares, and once more with ties decided otherwise if that fails."""
        first, second = Report(silent=True), Report(silent=True)
        result = compute(Draws(self.shift), first)
        if first.failures:
            other = compute(Draws(self.shift, TIE), second)
            if not second.failures:
                self.report.extend(second, " (classes equally likely up to rounding exchanged)")
                return other
        self.report.extend(first)
        return result

    def _loss(self, index, draws, report):
        data = self.data
        found, grads = data.probe.loss(draws, data.params, data.carry, data.batches[index])
        found = flatten(found)
        self._parts(f"loss{index}", found, report)
        want = self.want.under(f"grad{index}/")
        names = [k for k in want if k != "loss"]
        group = f"{self.group}/grad{index}"
        if "loss" in want:
            report.compare(f"{group}/loss", found, want, TOLERANCE, names=["loss"])
        # A gradient that is 0 but for rounding is measured by the greatest one of all tensors.
        floor = 1e-9 * max((np.abs(want[k]).max() for k in names), default=0.0)
        report.compare(group, grads, want, GRADIENTS, names=names, floor=floor)

    def _training(self):
        data = self.data
        state, carry, rates = data.params, data.carry, []
        last = max([int(x[5:]) for x in self.want.heads() if x.startswith("train")], default=0)
        for i, batch in enumerate(data.batches[:last]):
            rates.append(data.config.opt.lr * min(i / data.config.opt.warmup, 1))

            def update(draws, report, i=i, state=state, carry=carry, batch=batch):
                state, found = data.probe.train(draws, state, carry, batch)
                self._parts(f"train{i + 1}", flatten(found), report)
                want = self.want.under(f"train{i + 1}/params/")
                if list(want):
                    group = f"{self.group}/train{i + 1}/params"
                    updated.compare(group, state, want, rates, report)
                return state, found["carry"]

            state, carry = self._attempt(update)

    def _policy(self, draws, report):
        got = policy_steps(self.data, draws)
        names = [k for k in self.want if k.startswith("policy")]
        for part in ("act", "carry"):
            some = [k for k in names if k.split("/")[1] == part]
            group = f"{self.group}/policy/{part}"
            report.compare(group, got, self.want, TOLERANCE, names=some)

    def _report(self, draws, report):
        data = self.data
        carry, metrics = data.probe.report(draws, data.params, data.carry, data.batches[0])
        self._parts("report_carry", flatten(carry), report, whole=True)
        want = self.want.under("report/")
        videos = [k for k in want if want[k].dtype == np.uint8]
        _compare_videos(f"{self.group}/report", metrics, want, videos, report)
        rest = [k for k in want if k not in videos]
        if rest:
            report.compare(f"{self.group}/report", metrics, want, TOLERANCE, names=rest)

    def _parts(self, head, found, report, whole=False):
        """One line per part of what is stored below a head, but for the parameters."""
        want = self.want.under(f"{head}/")
        for part in [""] if whole else want.heads():
            if part != "params":
                names = [k for k in want if whole or k.split("/")[0] == part]
                group = f"{self.group}/{head}/{part}".rstrip("/")
                report.compare(group, found, want, TOLERANCE, names=names)
                extra = [k for k in found if whole or k.split("/")[0] == part]
                extra = sorted(set(extra) - set(names))
                if extra and part not in ("metrics", "imag"):
                    report.fail(group, f"not in the reference: {', '.join(extra)}")


def policy_steps(data: Set, draws: Draws, **kwargs: Any) -> dict[str, Any]:
    """Actions and carries along the first batch's observations, from the initial carry."""
    batch, got = data.batches[0], {}
    carry = data.model.init_policy(data.config.batch_size)
    for i in range(batch["is_first"].shape[1]):
        obs = {k: batch[k][:, i] for k in data.model.obs_space}
        carry, action, _ = data.probe.policy(draws, data.params, carry, obs, **kwargs)
        found = flatten({"act": action, "carry": carry})
        got |= {f"policy{i}/{k}": v for k, v in found.items()}
    return got


def _compare_videos(group, got, want, names, report):
    """Pixels may differ by one step where rounding decides, at up to one in a thousand places."""
    errors, problems = {}, []
    for name in names:
        image, expected = np.asarray(got.get(name, 0), np.float64), want[name]
        if image.shape != expected.shape:
            problems.append(f"{name} has shape {image.shape}, not {expected.shape}")
            continue
        errors[name] = error(image / 255, expected / 255)
        if (image != expected).mean() > 1e-3:
            problems.append(f"{name} differs at {int((image != expected).sum())} places")
    if names:
        values = sum(want[k].size for k in names)
        report.add(f"{group}/videos", values, errors, 1.01 / 255, problems)


def plausible(data: Set, group: str, want: Numbers, report: Report) -> None:
    """Compares shapes and sizes of a run with real draws, whose random numbers are not ours.

    What does not depend on draws must agree; the model's losses must agree within a factor of two;
    of all else only shapes, types and finiteness are compared.
    """
    seed, start = data.inputs["seed"], data.params
    args = (Draws(), start, data.carry)
    found, grads = data.probe.loss(*args, data.batches[0], seed=seed)
    found = flatten(found)
    got = {f"loss0/{k}": v for k, v in found.items()}
    got |= {f"grad0/{k}": v for k, v in {**grads, "loss": found["loss"]}.items()}
    state, carry = start, data.carry
    for i, batch in enumerate(data.batches):
        state, found = data.probe.train(Draws(), state, carry, batch, seed=seed)
        carry = found["carry"]
        found = {**flatten(found), **{f"params/{k}": v for k, v in state.items()}}
        got |= {f"train{i + 1}/{k}": v for k, v in found.items()}
    got |= policy_steps(data, Draws(), seed=seed)
    known = [k for k in want if k in got]
    exact = [k for k in known if k.startswith(("loss0/tokens", "loss0/prevact"))]
    report.compare(f"{group}/without draws", got, want, TOLERANCE, names=exact)
    model = ("loss", *(f"metrics/loss/{k}" for k in ("dyn", "rep", "rew", "con")))
    near = [k for k in known if k.split("/", 1)[1] in model]
    report.compare(f"{group}/losses", got, want, 1.0, names=near)
    _compare_kinds(f"{group}/shapes", got, want, known, report)


def _compare_kinds(group, got: Mapping[str, Any], want, names, report):
    problems = []
    for name in names:
        value, expected = np.asarray(got[name]), want[name]
        if (value.shape, value.dtype.kind) != (expected.shape, expected.dtype.kind):
            problems.append(f"{name} is {value.dtype}{value.shape}")
        elif not np.isfinite(value).all():
            problems.append(f"{name} is not finite")
    report.add(group, sum(want[k].size for k in names), {}, 0.0, problems)
