"""Where the script tells a framework its settings: ``TrainingArguments``, ``Trainer``, ``Fabric``, ``Accelerator``.

Each construction becomes a call site whose details are what a fix has to know: the framework, the class, the values
that the script gave to the settings named here, and which of these its constructor takes at all (versions differ).
Beside them the call of Lightning's ``Trainer.fit``, which is where the script hands over its model.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

from .imports import PostImport
from .patches import Patch
from .places import maker_site, owner, user_site
from .sites import CallSites

# What rules set, and what decides whether they may.
_SETTINGS = {
    "TrainingArguments": (
        "per_device_train_batch_size", "auto_find_batch_size", "gradient_accumulation_steps", "dataloader_num_workers",
        "dataloader_persistent_workers", "dataloader_pin_memory", "dataloader_multiprocessing_context", "bf16", "fp16",
        "tf32", "torch_compile", "optim", "use_cpu", "accelerator_config", "save_strategy", "save_steps",
        "load_best_model_at_end", "gradient_checkpointing", "gradient_checkpointing_kwargs", "group_by_length",
        "train_sampling_strategy", "eval_strategy", "evaluation_strategy", "eval_steps", "logging_steps",
    ),
    "Trainer": (
        "precision", "accelerator", "benchmark", "detect_anomaly", "plugins", "gradient_clip_val",
        "accumulate_grad_batches", "reload_dataloaders_every_n_epochs",
    ),
    "Fabric": ("precision", "accelerator", "plugins"),
    "Accelerator": (
        "mixed_precision", "dynamo_backend", "dynamo_plugin", "dataloader_config", "cpu",
        "gradient_accumulation_steps", "gradient_accumulation_plugin",
    ),
}  # fmt: skip
_FRAMEWORKS = ("transformers", "lightning", "pytorch_lightning", "accelerate")

Make = Callable[[Any], Any]


def watch_frameworks(imports: PostImport, sites_of: Callable[[], CallSites | None]) -> None:
    """Remember the constructions, once the script imports the frameworks.

    To be called before torch is imported: a script may leave that to a framework, whose module is half made then.
    `sites_of` gives the call sites, None before torch is there.
    """

    def on(module: str, cls: str, attribute: str, make: Callable[[CallSites], Make]) -> None:
        def imported(loaded: ModuleType) -> None:
            sites = sites_of()
            if sites is None:
                return
            with contextlib.suppress(AttributeError, TypeError):  # a version that has it elsewhere: nothing is recorded
                sites.also(Patch(getattr(loaded, cls), attribute, make(sites)))

        imports.when_imported(module, imported)

    # A dataclass: subclasses get constructors of their own, and all of those end in this method.
    on("transformers.training_args", "TrainingArguments", "__post_init__", _made("TrainingArguments", True))
    on("accelerate.accelerator", "Accelerator", "__init__", _made("Accelerator"))
    for package in ("lightning.pytorch", "pytorch_lightning"):
        on(f"{package}.trainer.trainer", "Trainer", "__init__", _made("Trainer"))
        on(f"{package}.trainer.trainer", "Trainer", "fit", _fitted)
    on("lightning.fabric.fabric", "Fabric", "__init__", _made("Fabric"))


def _made(kind: str, post: bool = False) -> Callable[[CallSites], Make]:
    """Wraps a constructor; with `post` the method that a dataclass calls at its end, its fields filled."""

    def make(sites: CallSites, original: Any) -> Any:
        def construct(made: Any, *args: Any, **kwargs: Any) -> Any:
            details: dict[str, Any] = {}
            with contextlib.suppress(Exception):  # recording must not cost the script anything
                bound = inspect.signature(original).bind_partial(made, *args, **kwargs)
                details = _details(kind, made, vars(made) if post else bound.arguments)
            result = original(made, *args, **kwargs)
            # One that another framework makes for itself is not the script's; a parser makes the script's arguments.
            if details and (post or owner(made).partition(".")[0] not in _FRAMEWORKS):
                sites.add(kind, maker_site(made), details)
            return result

        return construct

    return lambda sites: partial(make, sites)


def _details(kind: str, made: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(type(made)).parameters  # a subclass may have others
    values = {name: getattr(given[name], "value", given[name]) for name in _SETTINGS[kind] if name in given}
    return {
        "class": type(made).__name__,
        "takes": [name for name in _SETTINGS[kind] if name in parameters],
        "values": {name: value if isinstance(value, _PLAIN) else str(value) for name, value in values.items()},
    }


_PLAIN = (str, int, float, bool, type(None))


def _fitted(sites: CallSites) -> Make:
    def make(original: Any) -> Any:
        def fit(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            model = args[0] if args else kwargs.get("model")
            sites.add("Trainer.fit", user_site(), {"module": type(model).__name__})
            return original(trainer, *args, **kwargs)

        return fit

    return make
