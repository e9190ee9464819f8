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


def test_images_that_need_padding():
    text = summarize(compose(["dmc_vision"], {"env.dmc.size": "84,210"}))
    assert "84 x 210 (padded to 96 x 224) -> 6 x 7" in text
    assert "128, 192, 256, 256, 256" in text
    assert text.endswith("Warnings\n  -  none")


def test_a_size_of_the_environments_choice_is_shown_as_the_usual_one():
    text = summarize(compose(["gymnasium"], {"env.gymnasium.size": "0,0"}))
    assert "64 x 64 -> 4 x 4" in text
