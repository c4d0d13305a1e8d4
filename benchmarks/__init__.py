"""`make speed`: the native substrate and its rivals, side by side in one run. Nothing here is part of the package."""
