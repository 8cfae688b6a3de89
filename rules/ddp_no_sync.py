"""The ranks of a job exchange gradients in backward passes that no optimizer's step follows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Drafts
from advisor.edit.gradients.exchanging import exchange_once
from advisor.evidence import Change
from advisor.evidence.gradients.exchanges import exchanges
from advisor.fixes import edited
from advisor.rule import (
    Advice,
    Example,
    Finding,
    Gain,
    Rule,
    Safety,
    call_sites,
    forward_sites,
    site_list,
    sites,
    where,
)

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence

_BASIS = "prior: the exchanges go that no optimizer's step follows, all else stays"


class DdpNoSync(Rule):
    """Gradients are accumulated over several backward passes, and the ranks exchange them in each of these.

    ``DistributedDataParallel`` adds the gradients of all ranks up while a backward runs. An optimizer that takes a step
    every few backwards needs that in the last one: sums of sums are the same. Under ``model.no_sync()``, around the
    forward and the backward, gradients stay with their rank until then. Reported where a trace shows more than one
    backward that exchanges gradients for each step of the optimizer.

    When not: batch norms that are synchronized exchange statistics in each pass all the same; gradients are looked at
    (clipped, logged) between the backwards.

    Source: PyTorch docs, ``DistributedDataParallel.no_sync``; NVIDIA, "PyTorch Performance Tuning Guide", "Skip
    unnecessary all-reduce if training with DistributedDataParallel and gradient accumulation".
    """

    id = "ddp-no-sync"
    title = "Exchange gradients in the last backward of a step only"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        found = exchanges(evidence)
        if found is None:
            return
        change = Change(remove_host_s=found.host_s / evidence.inflation, kernel_scale=found.kernel_scale)
        gain = Gain.prior(evidence.what_if(change), _BASIS)
        if not gain.worth_it:
            return
        forwards, backwards = forward_sites(evidence), call_sites(evidence, "backward")
        site = backwards[0].site if backwards else None
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"Gradients travel between the ranks in {found.per_step} backward passes for each step of the "
            f"optimizer{f', {where(site)}' if site is not None else ''}, and are needed after the last of them.",
            gain=gain,
            evidence={
                "exchanges_per_step": found.per_step,
                **({"exchanging_s": found.host_s} if found.kernel_scale is None else {}),
                "step_s": evidence.step_s,
            },
            site=site,
            parameters={
                "forward": sites(forwards),
                "backward": sites(backwards),
                "step": sites(call_sites(evidence, "Optimizer.step", "GradScaler.step", every_step=False)),
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Advice:
        text = (
            "Run forward and backward under model.no_sync() (of the model that DistributedDataParallel wraps) unless "
            "the optimizer's step follows; with Accelerate: with accelerator.accumulate(model)."
        )
        drafts = Drafts(sources)
        why = exchange_once(drafts, *(site_list(finding, name) for name in ("forward", "backward", "step")))
        return Advice(text, why) if why else edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(Net())
for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y) / k  # <- forward=model(x)
    loss.backward()  # <- backward
    if (i + 1) % k == 0 or i + 1 == len(loader):
        optimizer.step()  # <- step
        optimizer.zero_grad()
""",
            after="""
from torch.nn.parallel import DistributedDataParallel as DDP
import contextlib

model = DDP(Net())
for i, (x, y) in enumerate(loader):
    with contextlib.nullcontext() if (i + 1) % k == 0 or i + 1 == len(loader) else model.no_sync():
        loss = criterion(model(x), y) / k
        loss.backward()
    if (i + 1) % k == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""",
        ),
        Example(
            before="accelerator.backward(loss)  # <- backward\n",
            after="",
            advice="accelerator.accumulate(model)",
        ),
    )
    LEAVES_ALONE = (
        Example("loss.backward()  # <- backward\noptimizer.step()  # <- step\n", ""),
        *(
            Example(
                f"""
from torch.nn.parallel import DistributedDataParallel as DDP
{wrap}
for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y) / k  # <- forward=model(x)
    loss.backward()  # <- backward
    {between}
    if {test}:
        optimizer.step()  # <- step
""",
                "",
            )
            for wrap, between, test in (
                ("if ranks > 1:\n    model = DDP(model)", "", "i % k == 0"),
                ("model = DDP(model)", "seen += 1", "seen % k == 0"),
                ("model = DDP(model)", "", "queue.pop()"),
                ("model = DDP(model)", "", "loss < 1"),
                ("model = DDP(model)\ndef seen(x):\n    run.updates += 1\n    return x", "", "run.updates % k == 0"),
                ("model = DDP(model)", "clip_grad_norm_(model.parameters(), 1.0)", "i % k == 0"),
                ("model = DDP(model)", "norms.append(weight.grad.norm())", "i % k == 0"),
            )
        ),
    )
