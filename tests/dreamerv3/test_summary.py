from dreamerv3.config import compose
from dreamerv3.summary import summarize


def test_sizes_follow_the_config():
    text = summarize(compose(["size12m"]))
    assert "2048 + 512 = 2560" in text
    assert "16 x 64 x 15 per update" in text
    assert text.endswith("Warnings\n  -  none")


def test_invalid_configs_become_warnings():
    config = compose([], {"agent.dyn.rssm.deter": 100, "agent.enc.simple.mults": "1,1"})
    warnings = summarize(config).partition("Warnings\n")[2]
    assert "100 is none of 8" in warnings
    assert "image grid of 16 x 16" not in warnings
    small = compose(["dmc_vision"], {"env.dmc.size": "32,64"})
    assert "grid of 2 x 4 for 32 x 64 images" in summarize(small)
