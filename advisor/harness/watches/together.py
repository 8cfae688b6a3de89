"""All that looks at some steps before the timing window, and at none of those that are measured."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ..layout import RunRecord
from ..loading.loaders import Loaders, tensors_in
from ..models import Models
from ..optimizers import Optimizers, parameters_of
from ..places import user_site
from .constants import WATCHED, Constants
from .discarded_gradients import Discarded
from .unread_results import STEPS, UnreadResults
from .unused_gradients import Unused

MOST_WATCHED = slice(WATCHED.start, STEPS.stop)  # of all steps, those that take longer as they are looked at
ENOUGH_BESIDE = 2 * WATCHED.stop  # steps: of fewer those are not left out, as hardly any other would remain


class Watches:
    """Hands on what happens in those steps to who looks for what is computed again, or for nobody.

    What one of them finds is known once its steps are over; each of them ends by itself, or is stopped when timing
    begins.
    """

    def __init__(self, torch: ModuleType, models: Models, optimizers: Optimizers, loaders: Loaders) -> None:
        self._torch: Any = torch
        self._loaders, self._optimizers = loaders, optimizers
        self._constants = Constants(torch, optimizers.parameters, models.roots)
        self._unread = UnreadResults(torch, models.roots, lambda: len(loaders.worker_pids()))
        self._unused = Unused(models.roots, optimizers.parameters, models.made, optimizers.moved)
        self._discarded = Discarded(torch, models.outermost, optimizers.groups, models.made)
        self._all = (self._unused, self._discarded, self._constants, self._unread)

    def start(self) -> None:
        """Nothing is known yet, or not any more: another training begins."""
        for each in self._all:
            each.start()

    def stop(self) -> None:
        """Look no more; what is known stays."""
        for each in self._all:
            each.stop()

    def give_up(self) -> None:
        """Never look again: something is compiled, and would be compiled anew for what looks."""
        for each in self._all:
            each.give_up()

    def hide(self) -> None:
        """From here on functions may run of which no mode is told."""
        self._unread.give_up()
        self._constants.hide()

    def step_ended(self, kind: str) -> None:
        """One of the steps before the timing window is over; their `kind` is "optimizer", "loader" or another."""
        by_optimizer = kind == "optimizer"
        if by_optimizer:  # gradients are looked at where they are all there
            self._unused.step_ended()
        if by_optimizer or not any(True for _ in self._optimizers.groups()):
            self._discarded.step_ended()
        self._constants.step_ended(untrained=kind == "loader")
        self._unread.step_ended()

    # What happens in the script.

    def batch(self, loader: int, batch: Any) -> None:
        """A loader has made this batch."""
        self._constants.batch(loader, tensors_in(batch, self._torch))
        self._unread.batch(loader, batch)

    def forward_begins(self, module: Any, given: list[Any], *, in_step: bool) -> None:
        """A model is called with the tensors `given`, and whatever else."""
        if in_step:
            self._constants.forward_begins(module, given)
        self._unread.forward_begins(module)

    def forward_ends(self, output: Any) -> None:
        self._constants.forward_ends(output)

    def array_made(self, result: Any, began: float, seconds: float) -> None:
        """`result` was made of an array; `began` is by ``time.perf_counter``."""
        self._constants.array_made(result, began, seconds)

    def backward_begins(self, loss: Any) -> None:
        """``loss.backward()`` is called, by a line of the user's."""
        self._constants.backward_begins()
        self._unused.backward_begins(loss)
        self._discarded.begins()
        if self._discarded.watching:
            self._discarded.backward(user_site(), loss)

    def differentiates(self, *given: Any) -> None:
        """A backward of these tensors begins, with these gradients."""
        self._unread.differentiates(*given)

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has done a step."""
        if self._discarded.watching:
            self._discarded.stepped(parameters_of(optimizer))

    # What was found.

    def record_gradients(self, record: RunRecord) -> None:
        """Put into the record what backwards compute for nobody, now that the timed steps are over, too."""
        record.unused_gradients = self._unused.still()
        record.gradients, record.gradients_needed = self._unused.gradients, self._unused.needed
        record.input_gradients = self._unused.inputs
        record.discarded, record.accumulated = self._discarded.found, self._discarded.accumulated
        record.backward_nodes, record.gradients_read = self._discarded.nodes, self._discarded.reads
        record.frozen = self._constants.frozen()

    def record_forwards(self, record: RunRecord) -> None:
        """Put into the record what the forwards that were watched have shown."""
        seen, unread = self._constants, self._unread
        record.recomputed, record.repeated = seen.found, seen.repeated
        record.gathered, record.one_hot = seen.gathered, seen.one_hot
        record.remade_weights, record.remade_share = seen.remade, seen.remade_share
        record.remade_bytes = seen.remade_bytes
        record.repeated_rows, record.zero_rows = seen.repeated_rows, seen.zero_rows
        record.sparse_products, record.looped_layers = seen.sparse_products, seen.looped_layers
        record.attention_masks = seen.attention_masks
        record.same_rows, record.copied_operands = seen.same_rows, seen.copied_operands
        record.unread, record.weighted = unread.found, unread.weighted
        record.computed_s, record.unread_gradients = unread.computed_s, unread.gradients
        record.asked_again, record.fourier_products = unread.again, unread.fourier_products
        for (index, name), size in unread.batches.items():
            loader = self._loaders.records[index]
            loader.unread[name], loader.unread_of = size, unread.whole[index]

    def stop_reading(self) -> None:
        """The script is over: what it reads from here on says nothing."""
        self._unread.stop()
