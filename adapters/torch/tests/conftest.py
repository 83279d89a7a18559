import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness  # noqa: E402

harness.install()


@pytest.fixture(autouse=True)
def clean():
    harness.clean()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    outcome = yield
    if outcome.excinfo and outcome.excinfo[0] is harness.Waived:
        outcome.force_exception(pytest.skip.Exception(str(outcome.excinfo[1])))
