"""What a Python process started by the script does for the run: patched sources, the journal, time per batch.

One that turns out to be rank 0 of a distributed job is observed from there on (:mod:`.ranks`).
"""

from __future__ import annotations

import os
from types import ModuleType

from .imports import PostImport
from .loading.loaders import fetch_patches
from .machine.openblas import OpenBlas
from .options import home, read_options
from .ranks import Ranks
from .status import tell_child_trains
from .undo.journal import Journal
from .undo.savers import protect


def join(options_path: str) -> None:
    """Called by our ``sitecustomize`` in each such process."""
    if not os.path.exists(options_path):
        return
    options = read_options(options_path)
    if options.overlay:
        from .overlay import Overlay  # here: most runs have none, and a worker should start quickly

        overlay = Overlay(options.overlay)
        overlay.install()
        overlay.serve_main()
    imports, journal = PostImport(), None
    if options.restore:
        journal = Journal(options.run_dir, lambda text: None, home(options))
        protect(imports, journal)
        journal.install()

    openblas = OpenBlas()
    imports.when_imported("numpy", openblas.numpy_loaded)

    ranks = Ranks(options, imports, journal)
    ranks.install()

    def fetcher_loaded(module: ModuleType) -> None:
        if not ranks.joined:
            ranks.timed += fetch_patches(options.run_dir, -1, openblas)
            for patch in ranks.timed:
                patch.on()

    def torch_loaded(torch: ModuleType) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(lambda optimizer, args, kwargs: tell_child_trains(options.run_dir))

    imports.when_imported("torch", torch_loaded)
    # Not on `torch`: its loader of data may come later, or never.
    imports.when_imported("torch.utils.data._utils.fetch", fetcher_loaded)
