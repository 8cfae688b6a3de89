"""Several losses go back through the same graph, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Drafts
from advisor.edit.gradients.asked_gradients import mentions_gradients
from advisor.edit.gradients.backwards import add_losses
from advisor.edit.sources import text_of
from advisor.evidence import Change
from advisor.evidence.gradients.backwards import shared_backward
from advisor.fixes import edited
from advisor.rule import (
    Advice,
    Example,
    Finding,
    Gain,
    Rule,
    Safety,
    call_sites,
    model_files,
    optimizer_files,
    site_list,
    sites,
    where,
)

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence


class SeparateBackwards(Rule):
    """A step calls ``backward`` for one loss after the other, and each goes through the model that they share again.

    ``retain_graph=True`` keeps the graph for the next one. The gradients only add up, so one backward of the sum gives
    the same, and goes through the shared part once: a head of its own is all that a further loss then costs. Reported
    where a trace of the steps shows nodes of one graph computed by several calls of ``backward``, with no optimizer
    between them.

    When not: the script looks at the gradients of each loss (to balance them, or to take conflicts out: then it is not
    reported); the graphs of all losses together do not fit into memory, where each was made after the backward of
    the one before.

    Source: PyTorch docs, ``torch.Tensor.backward``: "in nearly all cases setting [retain_graph] to True is not needed
    and often can be worked around in a much more efficient way".
    """

    id = "separate-backwards"
    title = "Go back once, from the sum of the losses"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        if record is None or evidence.compiled:
            return
        shared = shared_backward(evidence)
        calls = call_sites(evidence, "backward")
        files = (*model_files(evidence), *optimizer_files(evidence, text_of))
        if shared is None or not calls or any(mentions_gradients(text_of(path)) for path in files):
            return
        kernels = shared.kernel_scale if (shared.kernel_scale < 1).any() else None
        gain = Gain.of(
            evidence.what_if(Change(remove_host_s=shared.seconds / evidence.inflation, kernel_scale=kernels))
        )
        if not gain.worth_it:
            return
        if len(calls) > max(shared.calls) and all(round(each.calls_per_step) == 1 for each in calls):
            calls = tuple(calls[each] for each in shared.calls)  # the others have graphs of their own
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"Each step goes back {shared.backwards} times through the same operators, {where(calls[0].site)}: "
            f"{shared.seconds * 1e3:.1f} ms of the traced step are in what another backward does again.",
            gain=gain,
            evidence={
                "repeated_backward_s": shared.seconds,
                "backwards": shared.backwards,
                "step_s": evidence.step_s,
            },
            site=calls[0].site,
            parameters={"calls": sites(calls)},
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Advice:
        text = f"Add up the losses that go back {where(finding.site)}, weighted as they are, and call backward() once."
        drafts = Drafts(sources)
        why = add_losses(drafts, site_list(finding, "calls"))
        return Advice(text, why) if why else edited(drafts, text)

    EXAMPLES = (
        Example(  # what is written into is made there
            before="""
def dice(scores, y):
    wanted = torch.zeros_like(scores)
    wanted.scatter_(1, y[:, None], 1)
    return 1 - (scores.softmax(1) * wanted).mean()

first = F.mse_loss(a(h), x)
first.backward(retain_graph=True)  # <- calls
hot = torch.zeros(n, k).scatter_(1, y[:, None], 1)
second = dice(b(h), y) + (b(h) * hot).mean()
seen += 1
second.backward()  # <- calls
""",
            after="""
def dice(scores, y):
    wanted = torch.zeros_like(scores)
    wanted.scatter_(1, y[:, None], 1)
    return 1 - (scores.softmax(1) * wanted).mean()

first = F.mse_loss(a(h), x)
hot = torch.zeros(n, k).scatter_(1, y[:, None], 1)
second = dice(b(h), y) + (b(h) * hot).mean()
seen += 1
(first + second).backward()
""",
        ),
        Example(
            before="""
features = trunk(x)
depth = l1(depth_head(features), z)
depth.backward(retain_graph=True)  # <- calls
normal = cosine(normal_head(features), n)
(0.5 * normal).backward()  # <- calls
optimizer.step()
""",
            after="""
features = trunk(x)
depth = l1(depth_head(features), z)
normal = cosine(normal_head(features), n)
(depth + 0.5 * normal).backward()
optimizer.step()
""",
        ),
        Example(
            before="""
class Trainer:
    def update(self, batch):
        a, b, c = self.losses(batch)
        a.backward(retain_graph=True)  # <- calls
        b.backward(retain_graph=True)  # <- calls
        c.backward()  # <- calls
        self.optimizer.step()
""",
            after="""
class Trainer:
    def update(self, batch):
        a, b, c = self.losses(batch)
        (a + b + c).backward()
        self.optimizer.step()
""",
        ),
        Example(
            before="for loss in losses:\n    loss.backward(retain_graph=True)  # <- calls\noptimizer.step()\n",
            after="",
            advice="call backward() once",
        ),
    )
    LEAVES_ALONE = (
        Example("for loss in losses:\n    loss.backward(retain_graph=True)  # <- calls\noptimizer.step()\n", ""),
        Example(  # another loss by the same name
            "loss = f(h)\nloss.backward(retain_graph=True)  # <- calls\nloss = g(h)\nloss.backward()  # <- calls\n", ""
        ),
        Example(  # with a gradient of its own
            "a.backward(weight, retain_graph=True)  # <- calls\nb.backward()  # <- calls\n", ""
        ),
        Example(  # what is called for the sum changes between the two
            "(2 * h).backward(retain_graph=True)  # <- calls\nh = g(h)\nb.backward()  # <- calls\n", ""
        ),
        Example(  # nor is it the tensor that it was
            "a.backward(retain_graph=True)  # <- calls\na.zero_()\nb.backward()  # <- calls\n", ""
        ),
        Example("if first:\n    a.backward(retain_graph=True)  # <- calls\nb.backward()  # <- calls\n", ""),
        Example(
            "a.backward(retain_graph=True)  # <- calls\nclip_grad_norm_(weights, 1)\nb.backward()  # <- calls\n",
            "",
        ),
        Example("scaler.scale(a).backward(retain_graph=True)  # <- calls\nb.backward()  # <- calls\n", ""),
        *(
            Example(f"{first}a.backward(retain_graph=True)  # <- calls\n{between}\nb.backward()  # <- calls\n", "")
            for first, between in (
                ("", "g = [p.grad.clone() for p in weights]"),
                ("", "weight.grad[0] = 0"),
                ("def halve():\n    weight.grad *= 0.5\n\n", "halve()"),
                ("", "del a"),
                ("", "for p in critic.parameters():\n    p.requires_grad = False"),
                (
                    "def freeze(net):\n    for p in net.parameters():\n        p.requires_grad = False\n\n",
                    "freeze(critic)",
                ),
                ("", "for p in critic.parameters():\n    p.data.clamp_(-1, 1)"),
                ("", "mean.data = b.mean()"),
                ("", "if b > 100:\n    raise ValueError"),
                ("weight.register_hook(lambda grad: grad.clamp(max=1))\n", ""),
            )
        ),
        Example(  # of the last batch the second is left out
            "for x in xs:\n    a.backward(retain_graph=True)  # <- calls\n    if x is last:\n        break\n"
            "    b.backward()  # <- calls\n",
            "",
        ),
    )
