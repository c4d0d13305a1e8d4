"""The synthetic substrate lives with the meter's tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "meter"))
