"""A layer is called on each state of a loop, whose rounds do nothing with what it gives but keep it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit.python_loops.collected import Collected, collected_at
from advisor.edit.sources import text_of
from advisor.evidence import Change
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import LoopedLayer

_LEAST_GAIN = 1.1
# Of the time that its products take in the forward, what one product of all rows saves there, and in the backward; by
# the rows of each call. Eleven layers of 4 to 256 rows, 128 to 512 inputs and 64 to 10,000 outputs, two cores: 0.87,
# 0.57, 0.43, 0.36, 0.25 to 0.34, 0.15 to 0.19, 0.11 and 0.13 for 4, 8, 16, 24, 32, 64, 128 and 256 rows, and 3.8, 2.6,
# 1.2, 1.3, 0.9 to 1.7, 0.3 to 0.5, 0.2 and 0.05: a weight's gradient is written whole, and added up, for each call.
_FORWARD, _POWER, _MOST_FORWARD = 1.75, 0.55, 0.85
_BACKWARD, _MOST_BACKWARD = 20.0, 4.0
_BASIS = "prior: what one product of all rows saved of eleven layers, by the rows of a call"


class LayerInLoop(Rule):
    """A loop over time calls a layer on each state, and only collects what it gives.

    A decoder that is taught word by word has an output layer as wide as its vocabulary, which no later word reads.
    Called in each round it multiplies a few rows with all of its weights, and the backward writes a gradient of all
    weights for each round, and adds them up. The states collected, ``torch.stack(states, 1)``, and the layer called
    once behind the loop, give the same scores: one product, one gradient. Reported where a run has seen a line call one
    layer several times in a step, on few rows each, and the source shows that the loop does nothing with the result but
    to keep it.

    When not: a later round reads the result (the word that was chosen, an input of the next step: then it is not
    reported); batch norm behind the layer, which has the statistics of one round now; the states do not fit into memory
    together, where the results do. On a GPU it is not reported: there calls take no time of their own.

    Source: Appleyard et al. 2016, "Optimizing Performance of Recurrent Neural Networks on GPUs", section 3.1 (products
    that do not depend on the recurrence are done for all time steps at once). The gain is a prior, by eleven layers.
    """

    id = "layer-in-loop"
    title = "Call the layer once behind the loop, for all of its states"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record, step_s = evidence.record, evidence.step_s
        if record is None or evidence.device_is_gpu or evidence.compiled or not step_s:
            return
        found = [(line, told) for line in record.looped_layers if (told := _collected(line)) is not None]
        if not found:
            return
        saved = sum(_saved_s(line) for line, _ in found)
        gain = Gain.prior(evidence.what_if(Change(remove_host_s=saved)), _BASIS)
        if gain.likely < _LEAST_GAIN:
            return
        line, collected = found[0]
        others = f" (and at {len(found) - 1} more lines)" if len(found) > 1 else ""
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"The loop at {_loop(line, collected)} calls {collected.layer} {line.calls:.0f} times in a step, "
            f"at {at(line.site)}{others}, on {line.rows / line.calls:.0f} rows each, and only keeps what it gives, in "
            f"{collected.kept}: {line.seconds * 1e3:.1f} ms in the forward.",
            gain=gain,
            evidence={
                "calls_per_step": line.calls,
                "rows_per_call": line.rows / line.calls,
                "inputs": line.inputs,
                "outputs": line.outputs,
                "layer_forward_s": sum(each.seconds for each, _ in found),
                "seconds_saved": saved,
                "step_s": step_s,
            },
            site=line.site,
            parameters={"layer": collected.layer, "given": collected.given, "kept": collected.kept},
        )

    def fix(self, finding: Finding, sources: Sources) -> Advice:
        layer, given, kept = (finding.parameters.get(each) for each in ("layer", "given", "kept"))
        return Advice(
            f"Keep {given or 'the state'} of each round instead of what {layer or 'the layer'} gives at "
            f"{at(finding.site)}, and call the layer once behind the loop: {kept or 'scores'} = {layer or 'layer'}("
            "torch.stack(states, 1)); states of different lengths by torch.cat, and split() behind it. A dropout in "
            "front of it draws for all states at once then, other numbers than before.",
            "how what is kept is put together, and read afterwards, only its author can tell",
        )

    EXAMPLES = (
        Example(
            before="for word in words.unbind(1):\n    h = cell(word, h)\n    scores.append(self.head(h))  # <-\n",
            after="",
            parameters={"layer": "self.head", "given": "h", "kept": "scores"},
            advice="scores = self.head(torch.stack(states, 1))",
        ),
    )
    LEAVES_ALONE = (Example("scores = self.head(torch.stack(states, 1))  # <-\n", ""),)


def _collected(line: LoopedLayer) -> Collected | None:
    """How a loop calls the layer there and only keeps what it gives; None where it does more."""
    return collected_at(text_of(line.site.file), line.site)


def _loop(line: LoopedLayer, collected: Collected) -> str:
    return f"{at(line.site).rpartition(':')[0]}:{collected.line}"


def _saved_s(line: LoopedLayer) -> float:
    """Seconds of a step that one product of all rows would save."""
    rows = max(1.0, line.rows / line.calls)
    forward, backward = min(_MOST_FORWARD, _FORWARD / rows**_POWER), min(_MOST_BACKWARD, _BACKWARD / rows)
    return float(forward * line.seconds + backward * line.differentiated_s)
