from benchmarks import faults


def test_kills_and_damage(tmp_path):
    result = faults.run(
        tmp_path / "run", kills=2, damages=8, save_steps=50, seconds=1.0, random_agent=True
    )
    assert result["problems"] == []
    assert result["survived"] == result["kills"] == 2
    assert result["damages_named"] == result["rest_used"] == 8
    assert result["sequences_checked"] > 100
    assert result["steps"] > 0
