"""The gradients of each sample are taken by a forward and a backward for it alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit.sources import text_of
from advisor.evidence import Change
from advisor.evidence.facts import LOADER, OPTIMIZER
from advisor.evidence.python_loops.sample_gradients import sample_gradients
from advisor.rule import WIDEST, Advice, Example, Finding, Gain, Rule, Safety, at

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence

_ONCE_S = 2.1  # the first call of vmap imports what it needs (torch 2.14)
_LEAST = 1.3  # the likely gain that is told of: a prior from few models
# What torch.vmap over torch.func.grad takes, best, likely, worst: as long as so many rounds of the loop, whatever the
# number of samples; of a round, for each sample; and seconds for each number of a sample's gradients, which are written
# to fresh memory and read again. Measured with torch 2.14 on two cores with AVX-512, 8, 32 and 128 samples with their
# norms and a clipped sum: multilayer perceptrons of 3 and 9 thousand weights and a small convolutional net 2.9 to 6.8
# rounds; of 330 thousand weights 1.2 ms a sample, of 1.9 million 5.7 to 6.9. Three whole scripts, of 40 to 64 samples,
# came to 8 or 9 rounds, what grows with the samples included.
_ROUNDS = (4.0, 6.0, 8.0)
_OF_A_ROUND = (0.01, 0.025, 0.06)
_NUMBER_S = (3.0e-9, 3.6e-9, 4.5e-9)
# The fused attention has no rule for vmap on a CPU and is called for each sample: a layer of an encoder took as long
# for 128 samples as 25 rounds.
_OF_A_ROUND_ATTENDING = (0.05, 0.13, 0.2)
_ATTENDS = "aten::scaled_dot_product_attention"
_BASIS = "prior: what vmap over grad took of such loops, measured on a CPU"


class PerSampleGradients(Rule):
    """A loop takes the gradients of each sample by a forward and a backward for it alone.

    Private training (DP-SGD) clips the gradients of each sample; the diagonal of the Fisher information, influence
    functions and measures of noise need them, too. A batch of one costs as many calls of operators as one of a hundred,
    and autograd only ever adds up. ``torch.func.vmap`` over ``torch.func.grad`` has the gradients of all samples of a
    batch in one go, with the samples in the first dimension. Reported where each round of a loop clears the gradients,
    goes back from the loss of one sample and reads them, changes no weights and needs no other round.

    When not: the gradients of all samples at once take too much memory (as many times the weights; ``chunk_size=``
    takes some at a time), or the model is so large that a round is mostly computing; layers that mix samples (batch
    norm), or that ``vmap`` has no rule for (``nn.LSTM``); the samples have different shapes. Reported on a CPU only,
    where it was measured.

    Source: PyTorch tutorial, "Per-sample-gradients"; PyTorch docs, ``torch.func.vmap`` (``chunk_size``,
    ``randomness``). What is left of the loop is a prior, from measurements on a CPU.
    """

    id = "per-sample-gradients"
    title = "Take the gradients of all samples at once"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if evidence.device_is_gpu or evidence.compiled or not evidence.step_s:
            return
        found = sample_gradients(evidence, text_of)
        if found is None:
            return
        beside = 0.0 if found.each_a_step else sum(map(evidence.breakdown.share, (LOADER, OPTIMIZER)))
        spent = evidence.step_s * (1.0 - beside)
        each = spent if found.each_a_step else spent / found.samples
        attends = evidence.operators.row(_ATTENDS) is not None
        of_a_round = _OF_A_ROUND_ATTENDING if attends else _OF_A_ROUND
        after = [  # a sample
            (rounds / found.samples + of_one) * each + number_s * found.parameters
            for rounds, of_one, number_s in zip(_ROUNDS, of_a_round, _NUMBER_S, strict=True)
        ]
        goes = [spent * max(0.0, 1.0 - one / each) for one in after]
        best, likely, worst = (evidence.what_if(Change(remove_host_s=seconds)).speedup[1] for seconds in goes)
        gain = Gain(max(min(worst, likely), best / WIDEST), likely, best, _BASIS, _ONCE_S)
        if gain.likely < _LEAST:
            return
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"The loop at {at(found.site)} goes forward and back for one sample after another, to read the "
            f"gradients of each: {each * 1e3:.2f} ms a sample, most of it calls of operators.",
            gain=gain,
            evidence={
                "sample_s": each,
                "samples": found.samples,
                "weights": found.parameters,
                "step_s": evidence.step_s,
            },
            site=found.site,
            parameters={"attends": attends},
        )

    def fix(self, finding: Finding, sources: Sources) -> Advice:
        text = (
            f"Take the gradients of all samples of the loop at {at(finding.site)} in one go: "
            "params = {name: p.detach() for name, p in model.named_parameters()}; "
            "def loss_of(params, x, y): return loss_function(torch.func.functional_call(model, params, (x[None],)), "
            "y[None]); "
            "grads = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))(params, xb, yb). "
            "Each of grads has the samples in its first dimension: norms are "
            "torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0), and a clipped sum "
            "torch.einsum('b,b...->...', factors, g). chunk_size= takes fewer samples at a time where memory is short, "
            "randomness='different' is for dropout."
        )
        if finding.parameters.get("attends"):
            text += " With torch.nn.attention.sdpa_kernel(SDPBackend.MATH) vmap has rules for attention, too."
        return Advice(text, "how the loss and what is done with the gradients go together only their author can tell")

    EXAMPLES = (
        Example(
            before="""
for i in range(start, start + B):  # <-
    model.zero_grad()
    loss_function(model(x[i : i + 1]), y[i : i + 1]).backward()
    for total, p in zip(sums, model.parameters()):
        total += p.grad * clip_factor(model)
""",
            after="",
            advice="torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))",
        ),
        Example(
            before="for a, b in zip(xb, yb):  # <-\n    ...\n", after="", parameters={"attends": True}, advice="MATH"
        ),
    )
    LEAVES_ALONE = (Example("for x, y in loader:  # <-\n    loss(model(x), y).backward()\n    opt.step()\n", ""),)
