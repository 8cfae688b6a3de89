"""One process drives all GPUs, and copies the model to each of them in every step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.evidence import Change
from advisor.evidence.coded import names_like
from advisor.evidence.host import select
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at, call_sites, site_list, sites

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence

# Autograd functions of torch/nn/parallel/_functions.py, which a trace shows by the names of their classes: parameters
# to each GPU, inputs to each, outputs back, gradients added up on the first.
_PARTS = re.compile(r"^(Broadcast|Scatter|Gather)(Backward)?$")
_LEAST_GAIN = 1.10  # a prior asks for more than what could just be measured
_BASIS = "prior: a step without the copies between GPUs that DistributedDataParallel does not make"


class DataParallelToDdp(Rule):
    """``nn.DataParallel`` copies the model to every GPU in each forward pass, and one process drives them all.

    In every step it broadcasts all parameters, scatters the inputs, runs one Python thread for each GPU (which share
    one interpreter lock), gathers the outputs on the first GPU and adds the gradients up there. With
    ``DistributedDataParallel`` each GPU has a process and a model of its own; only gradients travel, while the backward
    pass still runs. Reported where what DataParallel does besides, as the trace shows it, is a part of the step.

    When not: one GPU only (then there is nothing to wrap). Batch norms see the batch of their own GPU in both;
    the learning rate stays, as long as the batches of all processes add up to the same.

    Source: PyTorch, ``torch.nn.DataParallel``: "It is recommended to use DistributedDataParallel, instead of this
    class, to do multi-GPU training, even if there is only a single node"; "Distributed communication package",
    ``torchrun``.
    """

    id = "dataparallel-to-ddp"
    title = "Give each GPU a process of its own (DistributedDataParallel)"
    safety = Safety.BEHAVIOUR

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        wrapped = [
            each
            for each in call_sites(evidence, "DataParallel", every_step=False)
            if int(each.details.get("devices") or 0) > 1
        ]
        if not wrapped or evidence.record is None or not evidence.device_is_gpu or not len(evidence.steps):
            return
        operators, steps = evidence.trace.operators, evidence.steps
        rows = names_like(evidence.trace, operators.name, lambda name: _PARTS.match(name) is not None)
        taken = float(select(operators, rows).within(steps.start, steps.end).sum()) / 1e9 / len(steps)
        taken /= evidence.inflation
        gain = Gain.prior(evidence.what_if(Change(remove_host_s=taken)), _BASIS)
        if gain.likely < _LEAST_GAIN:
            return
        devices = max(int(each.details["devices"]) for each in wrapped)
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"DataParallel spends {taken * 1e3:.1f} ms of each step on copying the model, its inputs and "
            f"outputs between {devices} GPUs.",
            gain=gain,
            evidence={"copying_s": taken, "gpus": devices, "step_s": evidence.step_s},
            site=wrapped[0].site,
            parameters={
                "gpus": devices,
                "loaders": tuple(
                    each.site for each in evidence.record.loaders if each.site is not None and each.trains
                ),
                "optimizer": sites(call_sites(evidence, "Optimizer", every_step=False)),
                "command": (evidence.record.script, *evidence.record.argv),
                "module": evidence.record.module,
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Advice:
        gpus = finding.parameters.get("gpus", 2)
        command = finding.parameters.get("command") or ("train.py",)
        words = " ".join(str(word) for word in command) if isinstance(command, tuple) else "train.py"
        named = "-m " if finding.parameters.get("module") else ""
        loaders = ", ".join(at(site) for site in site_list(finding, "loaders"))
        return Advice(
            f"Start it with `torchrun --nproc_per_node={gpus} {named}{words}`. At the top of the program: "
            "torch.distributed.init_process_group(), rank = int(os.environ['LOCAL_RANK']), "
            "torch.cuda.set_device(rank). "
            f"At {at(finding.site)}: DistributedDataParallel(model.to(rank), device_ids=[rank]). At "
            f"{loaders or 'the loader'}: sampler=DistributedSampler(dataset) in place of shuffle=True, the batch size "
            f"divided by {gpus}, and sampler.set_epoch(epoch) in each epoch. Print and save where rank is 0 only.",
            "a program of several processes is started, seeded and saved in other places than these calls",
        )

    EXAMPLES = (
        Example(
            before="model = nn.DataParallel(Net().cuda())  # <-\nfor x in loader:\n    y = model(x)\n",
            after="",
            parameters={"gpus": 4, "command": ("train.py", "--lr", "0.1")},
            advice="torchrun --nproc_per_node=4 train.py --lr 0.1",
        ),
    )
    LEAVES_ALONE = (Example("model = nn.DataParallel(Net().cuda())  # <-\n", ""),)
