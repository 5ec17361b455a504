"""A module whose body reads the environment and that no unit uses."""

import os

HOME = os.environ.get("SUPPORT_SCALE")
