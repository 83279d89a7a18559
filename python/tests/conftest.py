"""What pytest reads before the tests of this folder."""

import sys

import pytest
from helpers import *  # noqa F403


@pytest.fixture(scope="session", autouse=True)
def core_alone():
    """The core's tests use nothing of compute."""
    yield
    assert "weir.compute" not in sys.modules
