"""What pytest reads before the tests of this folder."""

from helpers import *  # noqa F403
