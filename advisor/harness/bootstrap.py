"""The first file that runs in the user's interpreter: ``python …/advisor/harness/bootstrap.py OPTIONS_JSON``.

The harness is loaded under the private package name ``_advisor_harness``, straight from this folder: nothing is
added to ``sys.path``, so neither our dependencies nor a name of ours can get in the way of the script's own.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from types import ModuleType

PACKAGE = "_advisor_harness"


def load_package() -> ModuleType:
    """The harness as the package ``_advisor_harness``; the same object when called again."""
    if PACKAGE in sys.modules:
        return sys.modules[PACKAGE]
    here = os.path.dirname(os.path.abspath(__file__))
    spec = importlib.util.spec_from_file_location(
        PACKAGE, os.path.join(here, "__init__.py"), submodule_search_locations=[here]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)
    return package


def main() -> None:
    if sys.version_info < (3, 10):  # noqa: UP036 – the user's interpreter, not the one that installed us
        sys.exit("advisor: the script's Python is older than 3.10; choose another interpreter with --python")
    sys.path.pop(0)  # this folder, which Python put there
    load_package()
    runner = importlib.import_module(PACKAGE + ".runner")
    runner.main(sys.argv[1])


if __name__ == "__main__":
    main()
