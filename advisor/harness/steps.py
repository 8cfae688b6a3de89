"""Where one step ends and the next begins, found without changing the script."""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Callable, Hashable

from .places import is_user_file

# Names that, anywhere in the user's own code, are signs that the script trains and its optimizer is still to come.
_TRAINING = frozenset({"backward", "optim", "Optimizer", "Trainer", "Seq2SeqTrainer", "fit", "zero_grad"})
# Without such a sign, inference is taken for granted at once. With one, and no optimizer step so far, only after so
# many batches and seconds of forwards without gradients (an evaluation before training is usually shorter).
_PATIENCE_EVENTS = 20
_PATIENCE_SECONDS = 30.0
_PATIENCE_WITH_OPTIMIZER = 180.0  # an agent may play that long before it first learns
_LEAST_GRADIENTS = 3  # taken with no module called: by then the hooks of those that there are would have seen one
_MOST_TURNS = 256  # of an inner loop for one of the outer: beyond that a first phase is over
_RETURNS = 2  # times that a rarer one has come back: from there on it may stay away for as long as it did before
_MOST_CALLS = 4096  # the same of models: fifty samples of a future are drawn hour by hour, one cell called for each
_MOST_ONCE = 3  # times that what comes once in a step may come before its turn is over: in a step that was cut short


def sources_train() -> bool:
    """Whether any source the user wrote, among those loaded so far, looks like training (comments do not count)."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and is_user_file(file):
            try:
                with open(file, "rb") as source:
                    tree = ast.parse(source.read())
            except (OSError, SyntaxError, ValueError):
                continue
            if any(_names(node) & _TRAINING for node in ast.walk(tree)):
                return True
    return False


def _names(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Attribute):
        return {node.attr}
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.ImportFrom):
        return {*(node.module or "").split("."), *(alias.name for alias in node.names)}
    if isinstance(node, ast.Import):
        return {part for alias in node.names for part in alias.name.split(".")}
    return set()


class LeastFrequent:
    """Chooses, among things that happen in turn, the one that happens least: the outermost loop.

    Five critic steps to one generator step make the generator's the boundary. Ties keep the first with
    ``keep_first`` (things that begin a step), else go to the newcomer (things that end one).
    """

    def __init__(self, keep_first: bool, most_turns: int = _MOST_TURNS) -> None:
        self._keep_first, self._most_turns = keep_first, most_turns
        self._counts: dict[Hashable, int] = {}
        self._known: set[Hashable] = set()
        self._since: dict[Hashable, int] = {}  # events of each since the boundary last came
        self._returned: dict[Hashable, int] = {}  # how often each has come to be the boundary for being the rarer one
        self._ratio = 1
        self.chosen: Hashable | None = None
        self.switched = False

    def event(self, key: Hashable) -> bool:
        """Whether this event is a boundary. ``switched`` tells whether the choice changed with it."""
        self.switched = False
        self._counts[key] = self._counts.get(key, 0) + 1
        if self.chosen is None:
            self.chosen = key
        elif key != self.chosen:
            mine, theirs = self._counts[key], self._counts[self.chosen]
            newcomer = key not in self._known and not self._keep_first
            self._since[key] = self._since.get(key, 0) + 1
            # The chosen one has fallen silent: a first phase is over, another optimizer goes on alone. Where each of
            # many comes once in a step (the parts of a model that is called by them), it is only not its turn yet.
            # One that has come back only once may be over: a final check, say.
            ratio = self._ratio if self._returned.get(self.chosen, 0) >= _RETURNS else min(self._ratio, _MOST_TURNS)
            silent = sum(self._since.values()) > 3 * ratio + 10 and self._since[key] > _MOST_ONCE
            if mine < theirs or (newcomer and mine == theirs) or silent:
                self._returned[key] = self._returned.get(key, 0) + (mine < theirs and not silent)
                self.chosen, self.switched = key, True
                self._since.clear()
                if silent:
                    self._counts = {key: 1}
                else:
                    self._ratio = max(self._ratio, min(theirs // mine, self._most_turns))
        self._known.add(key)
        if key != self.chosen:
            return False
        self._ratio = max(self._ratio, sum(self._since.values()))
        self._since.clear()
        return True


class StepFinder:
    """Turns optimizer steps, batches, forwards and explicit calls into step boundaries.

    ``kind`` is ``auto`` until known. With an optimizer in sight, batches and forwards are only remembered.
    """

    def __init__(self, forced: str, trains: Callable[[], bool] = sources_train) -> None:
        self.kind = "" if forced == "auto" else forced
        self._forced = forced != "auto"
        self._trains = trains
        self._expects_training: bool | None = None
        self._optimizers = LeastFrequent(keep_first=False)
        self._loaders = LeastFrequent(keep_first=True)
        self._forwards = LeastFrequent(keep_first=True, most_turns=_MOST_CALLS)
        self.optimizer_made = False
        self.seen = {"optimizer_steps": 0, "batches": 0, "forwards": 0}
        self._forwards_since_batch = 0
        self._inference_since: float | None = None
        self._inference_events = 0
        self._learning_forwards = 0  # those with gradients
        self._gradients = self._functional = 0  # asked for while no module was called; of them those that were forwards
        self._passes_seen = self._passes_known = False  # several forwards over one batch are one step's
        self._by_hand = False  # the script trains without an optimizer: `p.data.add_(p.grad, alpha=-lr)`
        self.restarted = False  # the last event changed what a step is: measure anew
        # How often another optimizer has come to end the steps. Unlike what batches and forwards are taken for, which
        # time decides, too, this is the same in every run of a script.
        self.training = 0
        self.turns = 0  # how often something else has come to be the batch or the forward that begins a step

    @property
    def boundary_optimizer(self) -> Hashable | None:
        return self._optimizers.chosen

    def _become(self, kind: str) -> None:
        if self.kind != kind:
            self.restarted = bool(self.kind)
            self.kind = kind

    def explicit(self) -> bool:
        self.restarted = False
        if not self._forced:
            self._become("explicit")
        return self.kind == "explicit"

    def optimizer_step(self, key: Hashable) -> bool:
        self.restarted = False
        self.seen["optimizer_steps"] += 1
        if self.kind not in ("", "optimizer") and (self._forced or self.kind == "explicit"):
            return False
        boundary = self._optimizers.event(key)
        self._become("optimizer")
        if self._optimizers.switched and self.seen["optimizer_steps"] > 1:
            self.restarted = True
            self.training += 1
        return boundary

    def before_batch(self, key: Hashable) -> bool:
        self.restarted = False
        self.seen["batches"] += 1
        fed, self._forwards_since_batch = self._forwards_since_batch > 0, 0
        if self.kind == "" and fed and self._inference():
            self._become("loader")
        # Once it is known that batches are steps, forwards need not be seen (their hooks are off while timing).
        if self.kind != "loader":
            return False
        boundary = self._loaders.event(key)
        self.restarted = self._loaders.switched
        self.turns += self.restarted
        return boundary

    def before_forward(self, key: Hashable, grad_enabled: bool, another: bool = False) -> bool:
        """`another`: it is one more pass over what the last forward was given, and ends no step."""
        self.restarted = False
        self.seen["forwards"] += 1
        self._forwards_since_batch += 1
        if grad_enabled:
            self._inference_since = None
            self._learning_forwards += 1
        elif self._inference_since is None:
            self._inference_since, self._inference_events = time.monotonic(), 0
        else:
            self._inference_events += 1
        if self.kind == "" and self.seen["batches"] == 0 and self._inference():
            self._become("forward")
        if self.kind != "forward" or another or (self._by_hand and not grad_enabled):
            self._passes_seen |= another
            return False
        boundary = self._forwards.event(key)
        self.restarted = self._forwards.switched
        if self._passes_seen and not self._passes_known:  # a step is more than what it was taken for so far
            self.restarted = self._passes_known = True
        self.turns += self.restarted
        return boundary

    @property
    def functional(self) -> bool:
        """Whether steps are known by the gradients that are asked for: no module is called."""
        return self.kind == "forward" and self._functional > 0

    def before_gradients(self, line: Callable[[], Hashable]) -> bool:
        """A backward begins, or ``torch.autograd.grad``: all that is seen of a model that is no module.

        Of several in a step, as `line` tells where they are called, the least frequent is the step's.
        """
        if self.seen["forwards"] != self._functional:
            return False
        self._gradients += 1
        if self._gradients < _LEAST_GRADIENTS:
            return False
        self._functional += 1
        return self.before_forward(line(), True)

    def _inference(self) -> bool:
        """Whether batches or forwards may count as steps now."""
        if self._expects_training is None:
            self._expects_training = self._trains()
        if not self._expects_training and not self.optimizer_made:
            return True
        if not self.optimizer_made and self._learning_forwards >= _PATIENCE_EVENTS:
            self._by_hand = True
            return True
        since = self._inference_since
        patience = _PATIENCE_WITH_OPTIMIZER if self.optimizer_made else _PATIENCE_SECONDS
        return since is not None and self._inference_events >= _PATIENCE_EVENTS and time.monotonic() - since >= patience
