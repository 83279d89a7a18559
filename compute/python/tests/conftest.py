"""What pytest reads before the tests of this folder: the settings of the core's tests, whose helpers these tests use."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3] / "python" / "tests"))

from helpers import *  # noqa E402 F403
