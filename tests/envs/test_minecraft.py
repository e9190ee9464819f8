import collections
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import embodied.envs
from dreamerv3 import factory
from dreamerv3.config import compose
from embodied.core.episodes import Episodes
from embodied.core.errors import EnvError, MissingPackageError
from embodied.envs import minecraft
from embodied.envs.minecraft import Minecraft
from embodied.testing import check_env

CHOICES = {  # handler: key of the action
    "PlaceBlock": "place",
    "EquipAction": "equip",
    "CraftAction": "craft",
    "CraftNearbyAction": "nearbyCraft",
    "SmeltItemNearby": "nearbySmelt",
}


class Handlers(ModuleType):
    """Every handler is a note of its name and its arguments."""

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: SimpleNamespace(name=name, args=args, kwargs=kwargs)


class Handler:
    pass


class EnvSpec:
    """Speaks the interface of MineRL's class of the same name, as far as the adapter uses it."""

    made: list = []  # noqa: RUF012

    def __init__(self, name, max_episode_steps=None):
        self.name = name

    def make(self):
        for part in (
            *("create_agent_start", "create_agent_handlers", "create_monitors"),
            *("create_rewardables", "create_server_world_generators"),
            *("create_server_quit_producers", "create_server_decorators"),
            "create_server_initial_conditions",
        ):
            assert isinstance(getattr(self, part)(), list)
        self.made.append(Game(self))
        return self.made[-1]


class Game:
    """A game where attacks give logs, every recipe works, and stepping back costs life."""

    def __init__(self, spec):
        observables = {x.name: x.args for x in spec.create_observables()}
        (self.resolution,) = observables["POVObservation"]
        (self.items,) = observables["FlatInventoryObservation"]
        (self.hands,) = observables["EquippedItemObservation"]
        actions = spec.create_actionables()
        self.keys = [x.args[0] for x in actions if x.name == "KeybasedCommandAction"]
        self.choices = {CHOICES[x.name]: x.args[0] for x in actions if x.name in CHOICES}
        self.start = [x.xml_template() for x in spec.create_agent_start()]
        self.action_space = SimpleNamespace(noop=self.noop)
        self.seeds, self.sent, self.running, self.quits, self.closed = [], [], False, False, False

    def noop(self):
        choices = dict.fromkeys(self.choices, "none")
        return collections.OrderedDict(
            camera=np.zeros(2), **dict.fromkeys(self.keys, 0), **choices
        )

    def seed(self, seed):
        self.seeds.append(seed)
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.running = True
        self.inventory = dict.fromkeys(self.items, np.array(0))
        self.hand, self.life = "air", 20.0
        return self.observe()

    def step(self, action):
        assert self.running
        assert action.keys() == self.noop().keys()
        for key, values in self.choices.items():
            assert action[key] in values, (key, action[key])
        self.sent.append(action)
        if action["attack"]:
            self.gain("log")
        for key in ("craft", "nearbyCraft", "nearbySmelt"):
            if action[key] != "none":
                self.gain(action[key])
        if action["place"] != "none":
            self.inventory[action["place"]] = np.array(0)
        if action["equip"] != "none":
            self.hand = action["equip"]
        self.life = self.life - 2.0 if action["back"] else min(20.0, self.life + 1)
        self.running = self.life > 0 and not self.quits
        return self.observe(), 0.0, not self.running, {}

    def gain(self, item):
        self.inventory[item] = self.inventory[item] + 1

    def observe(self):
        width, height = self.resolution
        return {
            "pov": self.rng.integers(0, 256, (height, width, 3), np.uint8),
            "inventory": dict(self.inventory),
            "equipped_items": {"mainhand": {"type": self.hand}},
            "life_stats": {
                "life": np.array(self.life),
                "food": np.array(10),
                "air": np.array(300),
            },
        }

    def close(self):
        self.closed = True


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch):
    monkeypatch.setattr(EnvSpec, "made", [])
    keymap = collections.defaultdict(str)
    modules = {
        "minerl.herobraine.hero.handlers": Handlers("handlers"),
        "minerl.herobraine.hero.mc": SimpleNamespace(INVERSE_KEYMAP=keymap),
        "minerl.herobraine.env_spec": SimpleNamespace(EnvSpec=EnvSpec),
        "minerl.herobraine.hero.handler": SimpleNamespace(Handler=Handler),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


def act(env, name="noop", reset=False):
    action = list(minecraft._ACTIONS).index(name)
    return env.step({"action": np.int32(action), "reset": np.bool_(reset)})


def run(env, *names):
    return [act(env, reset=True), *(act(env, x) for x in names)]


def sent(*names, **options):
    """What MineRL gets for these actions, without what is left alone."""
    run(Minecraft("diamond", **options), *names)
    game = EnvSpec.made[-1]
    noop = game.noop()
    return [
        {k: v for k, v in x.items() if k != "camera" and v != noop[k]}
        | ({"camera": tuple(x["camera"].tolist())} if x["camera"].any() else {})
        for x in game.sent
    ]


@pytest.mark.parametrize("options", [{}, {"logs": False, "break_speed": 1.0, "length": 20}])
def test_keeps_the_contract(options):
    env = embodied.envs.make("minecraft_diamond", size=(12, 16), **options)
    check_env(env, steps=300)
    assert env.obs_space["image"].shape == (12, 16, 3)
    env.close()
    assert EnvSpec.made[0].closed


def test_wrong_options_are_named():
    with pytest.raises(EnvError, match="no task of Minecraft 'diamonds': try 'diamond'"):
        embodied.envs.make("minecraft_diamonds")
    with pytest.raises(EnvError, match="length is 0, but must be at least 1"):
        Minecraft("diamond", length=0)


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "minerl.herobraine.hero.handlers", None)
    message = "'minecraft' needs the package 'minerl', .*`pip install minerl==0.4.4 "
    with pytest.raises(MissingPackageError, match=message):
        Minecraft("diamond")


def test_blocks_break_faster():
    Minecraft("diamond", break_speed=100.0)
    assert EnvSpec.made[0].start == ["<BreakSpeedMultiplier>100.0</BreakSpeedMultiplier>"]


def test_worlds_follow_from_the_seed():
    def seeds(seed):
        env = embodied.envs.make("minecraft_diamond", seed=seed)
        for _ in range(3):
            act(env, reset=True)
        return EnvSpec.made[-1].seeds

    assert seeds(1) == seeds(1) != seeds(2)
    assert len(set(seeds(1))) == 3


class TestActions:
    def test_every_action_arrives(self):
        env = Minecraft("diamond")
        assert env.act_space["action"].classes == 25
        arrived = [sent(name)[0] for name in minecraft._ACTIONS]
        assert len({str(x) for x in arrived}) == 25
        assert arrived[0] == {}
        assert sent("craft_furnace") == [{"nearbyCraft": "furnace"}]
        assert sent("turn_left") == [{"camera": (0, -15)}]

    def test_a_jump_is_held_and_goes_forward(self):
        steps = sent("jump", "noop", "turn_left", *["noop"] * 9)
        assert [("jump" in x, "forward" in x) for x in steps] == [(True, True)] * 10 + [
            (False, False)
        ] * 2
        assert steps[2]["camera"] == (0, -15)

    @pytest.mark.parametrize(("speed", "held"), [(1.0, 30), (100.0, 1)])
    def test_an_attack_is_held_at_the_normal_speed(self, speed, held):
        steps = sent("jump", "attack", *["noop"] * 40, break_speed=speed)
        assert sum("attack" in x for x in steps) == held
        assert not any("jump" in x and "attack" in x for x in steps)

    def test_nothing_is_held_over_a_reset(self):
        env = Minecraft("diamond", break_speed=1.0)
        run(env, "jump")
        run(env, "attack")
        run(env, "noop")
        assert not EnvSpec.made[0].sent[-1]["attack"]
        assert not EnvSpec.made[0].sent[-1]["jump"]

    def test_pitch_is_limited(self):
        steps = sent(*["turn_down"] * 6, "turn_right", *["turn_up"] * 10)
        pitches = np.cumsum([x.get("camera", (0, 0))[0] for x in steps])
        assert (pitches.max(), pitches.min()) == (60, -60)
        assert steps[6]["camera"] == (0, 15)


class TestObservations:
    def test_inventory_now_and_at_most(self):
        env = Minecraft("diamond")
        obs = run(env, "craft_furnace", "craft_furnace", "place_furnace")
        index = minecraft.ITEMS.index("furnace")
        assert [float(x["inventory"][index]) for x in obs] == [0, 1, 2, 0]
        assert [float(x["inventory_max"][index]) for x in obs] == [0, 1, 2, 2]
        assert not act(env, reset=True)["inventory_max"].any()

    def test_what_the_hand_holds(self):
        start, after = run(Minecraft("diamond"), "equip_iron_pickaxe")
        names = minecraft.EQUIPMENT
        assert names[start["equipped"]] == "air"
        assert names[after["equipped"]] == "iron_pickaxe"

    def test_levels_are_shares(self):
        start, after = run(Minecraft("diamond"), "back")
        assert (start["health"], start["hunger"], start["breath"]) == (1, 0.5, 1)
        assert after["health"] == np.float32(0.9)


class TestRewards:
    def test_each_item_pays_once(self):
        env = Minecraft("diamond")
        names = ["attack", "attack", "craft_planks", "place_dirt", "craft_planks", "craft_stick"]
        for _ in range(2):  # once in an episode
            rewards = [float(x["reward"]) for x in run(env, *names)]
            assert rewards == [0, 1, 0, 1, 0, 0, 1]

    def test_all_twelve(self):
        assert len(minecraft._MILESTONES) == 12
        assert set(minecraft._MILESTONES) < set(minecraft.ITEMS)

    def test_life_pays_a_little(self):
        rewards = [float(x["reward"]) for x in run(Minecraft("diamond"), "back", "noop", "noop")]
        assert rewards == pytest.approx([0, -0.02, 0.01, 0.01])

    def test_death_is_terminal(self):
        obs = run(Minecraft("diamond"), *["back"] * 10)
        assert [i for i, x in enumerate(obs) if x["is_terminal"]] == [10]

    def test_time_limit_and_the_end_of_the_server_are_not(self):
        obs = run(Minecraft("diamond", length=5), *["noop"] * 6)
        assert [i for i, x in enumerate(obs) if x["is_last"]] == [5]
        env = Minecraft("diamond")
        act(env)
        EnvSpec.made[-1].quits = True
        obs.append(act(env))
        assert obs[-1]["is_last"]
        assert not any(x["is_terminal"] for x in obs)

    def test_success_rates(self):
        episodes = Episodes(lambda episode: None, video=False)
        for names in (["attack"], ["noop"]):
            for obs in run(Minecraft("diamond", length=1), *names):
                episodes.on_step(obs, 0)
        stats = episodes.stats()
        assert (stats["success_rate/log"], stats["success_rate/diamond"]) == (0.5, 0)


def test_preset():
    config = compose(["minecraft"])
    env = factory.make_env(config, 0)
    assert env.obs_space["image"].shape == (64, 64, 3)
    assert act(env, reset=True)["is_first"]
