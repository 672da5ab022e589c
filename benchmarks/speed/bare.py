"""Import this first, and temperance's losses need torch and NumPy alone.

The package's own __init__ brings in everything, SciPy and safetensors too. Where these are missing it is left out, so
that the losses can be timed from source on a machine that has nothing but torch.
"""

import importlib.util
import sys
import types

if not all(importlib.util.find_spec(name) for name in ("scipy", "safetensors")):
    found = importlib.util.find_spec("temperance")
    package = types.ModuleType("temperance")
    package.__path__ = list(found.submodule_search_locations or []) if found else []
    sys.modules["temperance"] = package
