"""What all tests share."""

import os
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="also run what takes minutes")


def pytest_configure(config):
    config.addinivalue_line("markers", "full: takes minutes; runs with --full")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--full"):
        return
    for item in items:
        if "full" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="takes minutes: --full"))


@pytest.fixture(scope="session")
def scenarios():
    return ROOT / "scenarios"


@pytest.fixture
def incast():
    """Sixteen senders, one receiver, as a dict."""
    return {
        "seed": 1,
        "fabric": {"topology": {"kind": "single-switch", "hosts": 17}, "link": {"rate": "100Gbps", "delay": "1us"}},
        "nic": {"control": "dcqcn"},
        "traffic": [{"kind": "incast", "from": "0..15", "to": 16, "bytes": "256KB"}],
    }


@pytest.fixture(scope="session")
def command():
    """The `railnet` command that came with the package, or the one that RAILNET names."""
    found = os.environ.get("RAILNET") or shutil.which("railnet", path=str(Path(sys.executable).parent))
    if not found:
        pytest.fail("there is no railnet command beside this Python: pip install ./python brings it, RAILNET names another")
    return found
