"""Agents on several devices and in several processes give what one device gives."""

import json
import socket

import numpy as np
import pytest

from . import subprocesses

UPDATES = 4

# Every layout takes the checkpoint of the first one, so that all start from equal parameters.
# To save compilations, only some report and act.
WHOLE = ("one device", "both and tensor", "shard_map 4", "data 2")
LAYOUTS = {
    "one device": {},
    "data 2": {"train_devices": (1, 2), "policy_devices": (0, 3)},
    "data 4": {"train_devices": (0, 1, 2, 3), "train_mesh": "-1,1,1"},
    "sharded 2": {"train_devices": (0, 1), "train_mesh": "1,-1,1"},
    "sharded 4": {"train_devices": (0, 1, 2, 3), "train_mesh": "1,-1,1"},
    "both and tensor": {"train_devices": (0, 1, 2, 3), "train_mesh": "2,1,2"},
    "shard_map 2": {"train_devices": (0, 1), "use_shardmap": True},
    "shard_map 4": {"train_devices": (0, 1, 2, 3), "train_mesh": "2,2,1", "use_shardmap": True},
}

CODE = """if True:
    import json, sys
    import numpy as np
    from tests.jax import toy

    updates, layouts, whole = json.loads(sys.argv[1])
    data, found = None, {}
    for name, options in layouts.items():
        agent = toy.make_agent(mock_devices=4, **options)
        data = data or agent.save()
        agent.load(data)
        losses, _, stream = toy.run_updates(agent, updates)
        found[name] = {
            "losses": losses,
            "params": {k: v.tolist() for k, v in agent.save()["params"].items()},
            "train": sorted({d.id for x in agent.params.values() for d in x.devices()}),
            "core": agent.params["net/core/kernel"].sharding.shard_shape((24, toy.UNITS))[1],
        }
        if name in whole:
            _, report = agent.report(agent.init_report(8), next(stream))
            carry = agent.init_policy(4)
            carry, acts, outs = agent.policy(carry, toy.make_obs(), mode="eval")
            found[name]["report"] = float(report["loss"])
            found[name]["move"] = acts["move"].tolist()
            found[name]["hidden"] = outs["hidden"].tolist()
            found[name]["policy"] = sorted(d.id for d in carry["hidden"].devices())
    print(json.dumps(found))
"""

ERRORS = """if True:
    from embodied.core.errors import DeviceError
    from tests.jax import toy

    def show(fn):
        try:
            fn()
        except DeviceError as e:
            print(e)

    two = {"mock_devices": 2, "train_devices": (0, 1), "policy_devices": (0, 1)}
    show(lambda: toy.make_agent(batch_size=13, **two))
    agent = toy.make_agent(**two)
    show(lambda: agent.init_policy(3))
    show(lambda: agent.init_train(5))
    show(lambda: next(agent.stream(toy.Source(batch=5))))
    show(lambda: toy.make_agent(train_mesh="4,1,1", **two))
"""

PROCESS = """if True:
    import json, sys
    from tests.jax import toy

    process, port, updates = map(int, sys.argv[1:4])
    options = json.loads(sys.argv[4])

    class Half(toy.Source):
        def __next__(self):
            return {k: v[4 * process:][:4] for k, v in super().__next__().items()}

    agent = toy.make_agent(
        num_processes=2, process_id=process, coordinator_address=f"localhost:{port}", **options)
    stream, carry, losses = agent.stream(Half()), agent.init_train(4), []
    for _ in range(updates):
        carry, outs, metrics = agent.train(carry, next(stream))
        losses += [float(metrics["loss"])] if metrics else []
    _, acts, _ = agent.policy(agent.init_policy(2), toy.make_obs(envs=2))
    data = agent.save()
    agent.load(data)
    params = {k: v.tolist() for k, v in data["params"].items()}
    rows = outs["replay"]["stepid"].tolist()
    move = acts["move"].tolist()
    print(json.dumps({"losses": losses, "params": params, "rows": rows, "move": move}))
"""


@pytest.fixture(scope="module")
def layouts():
    # Less optimisation halves the time, most of which is compilation.
    flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    return subprocesses.run_json(CODE, json.dumps([UPDATES, LAYOUTS, WHOLE]), XLA_FLAGS=flags)


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_agree(layouts, name):
    first, found = layouts["one device"], layouts[name]
    assert len(found["losses"]) == UPDATES - 1
    np.testing.assert_allclose(found["losses"], first["losses"], rtol=1e-5)
    for key, value in first["params"].items():
        np.testing.assert_allclose(found["params"][key], value, rtol=1e-5, atol=1e-5, err_msg=key)


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("key", ["report", "move", "hidden"])
def test_layouts_report_and_act_alike(layouts, name, key):
    np.testing.assert_allclose(layouts[name][key], layouts["one device"][key], atol=1e-5)


def test_layouts_use_their_devices(layouts):
    assert layouts["data 2"]["train"] == [1, 2]
    assert layouts["data 2"]["policy"] == [0, 3]
    assert layouts["sharded 4"]["core"] == 2
    assert layouts["data 4"]["core"] == 8


def test_what_cannot_be_split_names_both_numbers():
    lines = subprocesses.run(ERRORS).splitlines()
    assert lines[0].startswith("batch_size 13 cannot be split evenly over 2 train devices")
    assert lines[1].startswith("The number of environments 3 cannot be split evenly over 2 policy")
    assert lines[2].startswith("The batch size 5 cannot be split evenly over 2 train devices")
    assert lines[3] == lines[2]
    assert lines[4].startswith("The mesh '4,1,1' does not fit 2 devices")
    assert len(lines) == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"train_mesh": "-1,1,1"},
        {"mock_devices": 2, "train_devices": (0, 1), "train_mesh": "1,-1,1"},
        {"use_shardmap": True},
    ],
)
def test_two_processes_agree_with_one(options):
    with socket.socket() as s:
        s.bind(("localhost", 0))
        port = s.getsockname()[1]
    both = [
        subprocesses.start(PROCESS, str(i), str(port), str(UPDATES), json.dumps(options))
        for i in range(2)
    ]
    found = [json.loads(subprocesses.finish(x).strip().splitlines()[-1]) for x in both]
    one = subprocesses.run_json(CODE, json.dumps([UPDATES, {"one device": {}}, []]))["one device"]
    for result in found:
        np.testing.assert_allclose(result["losses"], one["losses"], rtol=1e-5)
        for key, value in one["params"].items():
            np.testing.assert_allclose(result["params"][key], value, rtol=1e-5, atol=1e-5)
    assert found[0]["rows"] != found[1]["rows"]  # Each gets the rows that it fed.
    assert found[0]["move"] != found[1]["move"]  # Each explores for itself.
