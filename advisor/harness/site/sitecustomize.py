"""Loaded by every Python that the script starts (this folder is first on PYTHONPATH while it is measured).

Spawned and forkserver workers, and Python subprocesses, keep the journal too and time the batches they make.
Whatever ``sitecustomize`` the user has is loaded all the same.
"""

import importlib
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _chain() -> None:
    """Run the ``sitecustomize`` that this one hides."""
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
    own = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError:
        if own is not None:
            sys.modules["sitecustomize"] = own


def _join() -> None:
    options = os.environ.get("ADVISOR_OPTIONS")
    # The process that the advisor itself started sets everything up on its own.
    if not options or os.path.join(os.path.dirname(_HERE), "bootstrap.py") in sys.orig_argv:
        return
    spec = importlib.util.spec_from_file_location(
        "_advisor_bootstrap", os.path.join(os.path.dirname(_HERE), "bootstrap.py")
    )
    if spec is None or spec.loader is None:
        return
    bootstrap = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bootstrap)
    bootstrap.load_package()
    importlib.import_module(bootstrap.PACKAGE + ".child").join(options)


_chain()
try:
    _join()
except Exception as error:  # the user's process must start, whatever becomes of ours
    print(f"advisor: a child process is not observed: {error}", file=sys.stderr)
