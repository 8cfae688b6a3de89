"""A loop in Python calls an LSTM, or its cell, for one element of a sequence after another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from advisor.edit.sources import text_of
from advisor.evidence import Change
from advisor.evidence.batch import flop_per_s
from advisor.evidence.python_loops.cell_loops import cell_loops
from advisor.evidence.python_loops.cells import Cells, lstm_cells
from advisor.harness.layout import Site
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at, model_files

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import Environment

_LEAST_CALLS = 8  # a step: two or three elements are no sequence
_LEAST_GAIN = 1.15
# Seconds that nn.LSTM takes beside its products, for each number of a state and for each element of a sequence: with
# the products at batch.FLOP_PER_S these give what seven sizes took (8 to 256 rows, states of 32 to 512, sequences of 32
# to 100) but for a factor of 1.4, torch 2.14, two cores with AVX2: 1.1 to 245 ms in training; cells took 9 to 537.
_NUMBER_S = {True: 40e-9, False: 10e-9}  # by whether it is trained
_ELEMENT_S = 20e-6
# On two cores with AVX-512 (and AMX, which float32 does not use) six such sizes took 1/1.3 to 1/2.8 of that, this on
# the mean. Seven on two cores that multiply 1.5 times as fast as those: 1/1.2 to 1/2 of that again in training, without
# 1/1.9 to 1/2.3.
_WITH_AVX512, _UNTRAINED = 0.55, 0.75
# What else a round does, embed an element and project its output, is done to all of them at once, and this part goes: a
# prior, of one script that gained 6.7, with it 2.7 to 5.3 are predicted, without it 1.4 to 2.4 were.
_ROUND = 0.7


class LstmCells(Rule):
    """A loop gives an ``nn.LSTMCell`` one element after another of a sequence that is known before.

    Only the state has to wait for the element before. ``nn.LSTM`` takes the whole sequence: the products with the
    inputs become one large product, oneDNN computes the gates, and neither Python nor autograd is asked for every
    element. So it is with an ``nn.LSTM`` that is given a sequence of one element in each round. Reported where every
    call of a cell in the script's files is of that kind, and the trace shows them.

    When not: the next input is made of the state (a decoder that reads what it wrote, attention in each round); the
    state is masked or reset on the way (for sequences of different lengths ``nn.utils.rnn.pack_padded_sequence`` does
    what a mask does); something is done to it between two elements that ``nn.LSTM`` has not, like layer norm. Not
    reported of GRU and RNN cells, whose modules take 0.5 to 1.5 times as long on a CPU, nor on GPUs, where it was not
    measured.

    Source: PyTorch docs, ``torch.nn.LSTMCell``, ``torch.nn.LSTM``. What the one call takes is a model of measurements.
    """

    id = "lstm-cells"
    title = "Give the whole sequence to nn.LSTM"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        if record is None or evidence.device_is_gpu or evidence.compiled:
            return
        found = lstm_cells(evidence)
        place = _place(evidence) if found is not None and found.calls >= _LEAST_CALLS else None
        if found is None or place is None:
            return
        spent = (found.forward_s + found.backward_s) / evidence.inflation
        saved = spent - _whole_s(record.environment, found) + _ROUND * found.round_s / evidence.inflation
        gain = Gain.of(evidence.what_if(Change(remove_host_s=saved))) if saved > 0 else None
        if gain is None or gain.likely < _LEAST_GAIN:
            return
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"The loop at {at(place.site)} calls {place.cells} {found.calls:.0f} times in every step, each for "
            f"one element of sequences that are known before: {spent * 1e3:.1f} ms with their backward.",
            gain=gain,
            evidence={
                "calls_per_step": found.calls,
                "cells_s": spent,
                "rounds_s": found.round_s / evidence.inflation,
                "whole_s": _whole_s(record.environment, found),
                "step_s": evidence.step_s,
            },
            site=place.site,
            parameters={"whole": place.cells if place.whole else ""},
        )

    def fix(self, finding: Finding, sources: Sources) -> Advice:
        if whole := finding.parameters.get("whole"):
            return Advice(
                f"Give {whole} the whole sequence at once, in front of the loop at {at(finding.site)}: "
                f"out, state = {whole}(x, state), of which out has what each round gives. What a round does to its "
                "input and output, embed and project it, is done to all elements at once in the same way.",
                "what else goes on in a round only its author can tell",
            )
        return Advice(
            f"Replace the loop at {at(finding.site)} by one call of nn.LSTM with the whole sequence "
            "(batch_first=True where the batch comes first; num_layers for cells on top of each other): its output has "
            "the state of every element. Weights of a trained cell go over as weight_ih_l0, weight_hh_l0, bias_ih_l0 "
            "and bias_hh_l0.",
            "weights change their names with it, and what else goes on in a round only its author can tell",
        )

    EXAMPLES = (
        Example(
            before="for t in range(x.size(1)):  # <-\n    h, c = self.cell(x[:, t], (h, c))\n    found.append(h)\n",
            after="",
            advice="one call of nn.LSTM",
        ),
        Example(
            before="for t in range(n):  # <-\n    y, state = self.rnn(x[:, t : t + 1], state)\n    z.append(y)\n",
            after="",
            parameters={"whole": "self.rnn"},
            advice="Give self.rnn the whole sequence at once",
        ),
    )
    LEAVES_ALONE = (Example("for t in range(x.size(1)):  # <-\n    h, c = self.cell(x[:, t], (h, c))\n", ""),)


def _whole_s(environment: Environment, found: Cells) -> float:
    """Seconds per step that nn.LSTM would take for the same."""
    trained, total = found.backward_s > 0, 0.0
    usual = flop_per_s(environment.cpu_flags)
    rate, faster = usual * max(1, environment.intraop_threads), max(1.0, (environment.flop_per_s or 0.0) / usual)
    for calls, rows, inputs, width in found.sizes:
        flops = 2.0 * rows * 4 * width * (inputs + width) * (3 if trained else 1)
        total += calls * (flops / rate + rows * width * _NUMBER_S[trained] + _ELEMENT_S)
    wide = _WITH_AVX512 if "avx512f" in environment.cpu_flags else 1.0
    return total * wide / faster * (1.0 if trained or not environment.flop_per_s else _UNTRAINED)


@dataclass(frozen=True)
class _Place:
    site: Site
    cells: str  # what the loop calls, in words
    whole: bool  # an nn.LSTM


def _place(evidence: Evidence) -> _Place | None:
    """The one loop that calls the cells; None where there are several, or a cell is called otherwise."""
    found: list[_Place] = []
    texts = {path: text_of(path) for path in model_files(evidence)}
    for path, text in texts.items():
        loops = cell_loops(text, "\n".join(each for other, each in texts.items() if other != path))
        if loops is None:
            return None
        found += [
            _Place(Site(path, loop.line), " and ".join(dict.fromkeys(loop.cells)), loop.whole) for loop in loops
        ]
    return found[0] if len(found) == 1 else None
