"""The compact reference numbers in `data` hold; see `compare.py` for what they are."""

from pathlib import Path

import pytest

from tests.golden import inventory, pure, sets, stats
from tests.golden.reference import Numbers, read_json
from tests.golden.report import Report

DATA = Path(__file__).parent / "data"

KEYS = ["debug/vision", "size400m/proprio"]


def check(report):
    assert report.lines
    assert not report.failures, "\n".join(report.lines)
    return [x for x in report.lines if x.startswith("not compared")]


def test_functions_and_layers():
    report, numbers = Report(), Numbers.load(DATA / "pure.npz")
    pure.compare(numbers, report, exact=False)
    assert not check(report)
    assert not numbers.unread
    assert len(report.lines) == 94


def test_initial_values():
    report = Report()
    stats.compare(DATA / "init_stats.json", report)
    assert not check(report)


@pytest.mark.parametrize("key", KEYS)
def test_parameters(key):
    report = Report()
    inventory.compare(DATA / "inventory.json", report, [key])
    check(report)


@pytest.mark.slow
def test_parameters_of_all_presets():
    keys = [x for x in read_json(DATA / "inventory.json") if x not in KEYS]
    report = Report()
    inventory.compare(DATA / "inventory.json", report, keys)
    check(report)


@pytest.mark.parametrize("name", ["proprio", "vision"])
def test_whole_agent(name):
    report = Report()
    sets.compare(DATA, name, report)
    assert not check(report)
