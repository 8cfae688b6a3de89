"""A GPU is there and the model, or a stage of it, runs on the CPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst
import libcst.matchers as m

from advisor.edit import Draft, Drafts
from advisor.edit.born import PLAIN, RANDOM, makes_in_forward
from advisor.edit.calls import argument
from advisor.edit.locate import last_name
from advisor.edit.moving import moves_to, stays_behind
from advisor.edit.names import full_name, last_part
from advisor.edit.regions import LOSS
from advisor.edit.scopes import assigned_once, scope_of, string_value
from advisor.evidence import Change
from advisor.evidence.gpu.devices import peak_of
from advisor.fixes import edited
from advisor.rule import (
    Advice,
    Argument,
    Example,
    Finding,
    Gain,
    Rule,
    Safety,
    call_sites,
    file_list,
    forward_sites,
    own_files,
    sites,
    where,
)

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.evidence.whatif import Estimate
    from advisor.harness.layout import RunRecord

# Time of the computing on a GPU over that on the CPU: a prior. A T4 has 8.1 TFLOP/s in float32 and 320 GB/s (data
# sheet), a server CPU of 16 AVX2 cores about 1 TFLOP/s and 40 to 80 GB/s. Others go by their memory, which most of a
# step waits for, but no operator takes less than it takes to launch its kernels: 8 us or so, of the five that make up
# one that computes.
_SCALE, _BANDWIDTH, _LAUNCHING_S = 0.15, 320e9, 1.5e-6
# What makes a tensor on the CPU, unless it is told where; and the methods behind it that say so.
_MAKERS = (PLAIN | RANDOM | {"tensor", "from_numpy", "linspace"}) - {each for each in PLAIN | RANDOM if "like" in each}
_ELSEWHERE = ("to", "cuda", "type_as")
_BASIS = "prior: this GPU computes about {times:.0f} times as fast as the CPU; loading stays as it is"


class DeviceUnused(Rule):
    """The machine has a GPU, and the model computes on the CPU.

    Nothing moves a model to a GPU by itself: ``model.to("cuda")`` and ``batch.to("cuda")`` have to say so; and a
    build of PyTorch for the CPU only cannot use the GPU at all, whatever the script says. Also reported where one
    model of several stays on the CPU while the others run on the GPU (a loss network, a tokenizer's embedding), so
    that its inputs and outputs are copied back and forth.

    When not: tiny models, for which launching kernels costs more than computing; the GPU is meant for others; its
    memory does not hold the model.

    Source: PyTorch notes, "CUDA semantics"; pytorch.org, "Get started" (builds). The gain is a prior.
    """

    id = "device-unused"
    title = "Use the GPU"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        if record is None or record.device.type not in ("cpu", "cuda"):
            return
        models = [model for model in record.models if model.parameters and model.calls]
        on_cpu = [model for model in models if set(model.devices) == {"cpu"}]
        gpus = record.environment.gpus or ([record.device.name or "a GPU"] if record.device.type == "cuda" else [])
        if not gpus or not on_cpu or record.environment.variables.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1"):
            return
        stage = len(on_cpu) < len(models) and evidence.device_is_gpu
        if evidence.device_is_gpu and not stage:
            return
        left = _left(evidence, gpus[0])
        basis = _BASIS.format(times=1 / left)
        estimate = _of_stage(evidence, left) if stage else evidence.what_if(Change(cpu_scale=left))
        gain = Gain.of(estimate, basis=basis)
        if not gain.worth_it:
            return
        names = ", ".join(dict.fromkeys(model.cls for model in on_cpu))
        forwards = forward_sites(evidence)
        places = [each for each in forwards if each.details.get("module") in {model.cls for model in on_cpu}]
        site = next((each.site for each in (*places, *forwards)), None)
        cpu_build = not record.environment.torch_cuda and not record.device.hip
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{names} computes on the CPU, and the machine has {gpus[0]}"
            + ("; this build of PyTorch is for the CPU only." if cpu_build else "."),
            gain=gain,
            evidence={"gpu": gpus[0], "models_on_cpu": names, "torch": record.environment.torch},
            site=site,
            parameters={
                "script": record.script if not record.module else "",
                "own": own_files(evidence),
                "moves": sites(call_sites(evidence, "Module.to", every_step=False)),
                "cpu_build": cpu_build,
                "stage": stage,
                "torch": record.environment.torch,
            },
            unmet=_unmet(record),
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        if finding.parameters.get("cpu_build"):
            return Advice(
                "Install a build of PyTorch for this GPU (pip install torch --index-url with the CUDA or ROCm index "
                "that pytorch.org's 'Get started' names), then move model and batches to it.",
                f"PyTorch {finding.parameters.get('torch', '')} is built for the CPU only".replace("  ", " "),
            )
        text = f'Move the model that is called {where(finding.site)}, and its inputs, to the GPU with .to("cuda").'
        if finding.unmet:
            return Advice(text, " ".join(finding.unmet))
        script = str(finding.parameters.get("script") or "")
        if finding.parameters.get("stage") or not script or not sources.has(script):
            return Advice(text, "which of its tensors have to move cannot be told from the source")
        drafts = Drafts(sources)
        draft = drafts[script]
        option = _option(draft)
        if option is not None:
            return Argument(option)
        device = _device_literal(draft)
        if device is None:
            return Advice(text, "the script has no single place that names its device")
        node, name = device
        files = [script, *(path for path in file_list(finding, "own") if sources.has(path))]
        if any(makes_in_forward(drafts[path], _MAKERS, "device", _ELSEWHERE) for path in files):
            return Advice(text, "methods of its modules make tensors, which stay on the CPU")
        if why := stays_behind(draft, name):
            return Advice(text, why)
        if any(_left_behind(draft, call) for call in draft.nodes(cst.Call)):
            return Advice(text, "a loss has weights of its own, which stay on the CPU")
        draft.replace(node, '"cuda"')
        return edited(drafts, text, 'Set the device to "cuda".')

    EXAMPLES = (
        Example(
            before="""
import torch

device = torch.device("cpu")  # laptop
model = Net().to(device)  # <- moves
for x, y in loader:
    loss = criterion(model(x.to(device)), y.to(device))
""",
            after="""
import torch

device = torch.device("cuda")  # laptop
model = Net().to(device)
for x, y in loader:
    loss = criterion(model(x.to(device)), y.to(device))
""",
        ),
        Example(  # weights that move, too
            before="""
device = "cpu"
balance = torch.tensor([1.0, 3.0], device=device)
criterion = nn.CrossEntropyLoss(balance)
other = FocalLoss(weight=counts)
other.to(device)
model = Net().to(device)
for x, y in loader:
    loss = criterion(model(x.to(device)), y.to(device))
""",
            after="""
device = "cuda"
balance = torch.tensor([1.0, 3.0], device=device)
criterion = nn.CrossEntropyLoss(balance)
other = FocalLoss(weight=counts)
other.to(device)
model = Net().to(device)
for x, y in loader:
    loss = criterion(model(x.to(device)), y.to(device))
""",
        ),
        Example(
            before="DEVICE = 'cpu'\nmodel = Net().to(DEVICE)\nx = x.to(DEVICE)\n",
            after='DEVICE = "cuda"\nmodel = Net().to(DEVICE)\nx = x.to(DEVICE)\n',
        ),
        Example(  # all that the loop gives is moved, or not for the model
            before="""
device = "cpu"
model = Net().to(device)
for i, (name, x, y, extra) in enumerate(loader):
    x, y = x.to(device), y.to(device)
    extra = [each.to(device) for each in extra]
    loss = criterion(model(x, extra), y)
    seen[name] = loss.detach().cpu().numpy()
    total += loss.item() * x.size(0)
""",
            after="""
device = "cuda"
model = Net().to(device)
for i, (name, x, y, extra) in enumerate(loader):
    x, y = x.to(device), y.to(device)
    extra = [each.to(device) for each in extra]
    loss = criterion(model(x, extra), y)
    seen[name] = loss.detach().cpu().numpy()
    total += loss.item() * x.size(0)
""",
        ),
        Example(
            before="""
parser.add_argument("--device", default="cpu")
args = parser.parse_args()
model = Net().to(args.device)
x = x.to(args.device)
""",
            after="",
            options={"--device": "cuda"},
        ),
    )
    LEAVES_ALONE = (
        Example("model = Net()\nfor x in xs:\n    model(x)\n", ""),
        Example("device = 'cpu'\nmodel = Net().to(device)\nprint(model(x))\n", ""),
        Example("device = 'cpu'\nmodel = Net().to(device)\nx = x.to(device)\n", "", {"cpu_build": True}),
        *(
            Example(f"device = 'cpu'\nmodel = Net().to(device)\nfor i, (x, y) in enumerate(loader):\n    {code}\n", "")
            for code in (
                "loss = criterion(model(x.to(device)), y)",
                "x = x.to(device)\n    loss = criterion(model(x), y)",
                "x, y = x.to(device), y.to(device)\n    loss = nn.CrossEntropyLoss(balance)(model(x), y)",
                "x, y = x.to(device), y.to(device)\n    loss = F.cross_entropy(model(x), y, weight=balance)",
                "x, y = x.to(device), y.to(device)\n    seen.append(model(x).detach().numpy())",
            )
        ),
        Example(
            """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return self.layer(x) + self.embed(torch.arange(x.size(1)))

device = "cpu"
model = Net().to(device)
for x in loader:
    y = model(x.to(device))
""",
            "",
        ),
    )


_WEIGHTED = ("CrossEntropyLoss", "NLLLoss", "BCELoss", "BCEWithLogitsLoss")  # the weights come first
_MOVES = re.compile(r"\.(to|cuda)\(|device\s*=")


def _left_behind(draft: Draft, call: cst.Call) -> bool:
    """Whether a loss is given weights that stay on the CPU, as far as the file tells."""
    name = last_name(draft, call)
    if not LOSS.search(name) or _is_moved(draft, call):
        return False
    given = (argument(call, "weight", ("weight",) if name in _WEIGHTED else ()), argument(call, "pos_weight"))
    for value in (arg.value for arg in given if arg is not None):
        made = assigned_once(draft, value.value, scope_of(draft, call)) if isinstance(value, cst.Name) else None
        number = isinstance(value, cst.BaseNumber) or m.matches(value, m.Name("None"))
        if not number and not any(_MOVES.search(draft.code(each)) for each in (value, made) if each is not None):
            return True
    return False


def _is_moved(draft: Draft, call: cst.Call) -> bool:
    """``Loss(…).to(device)``, at once or by its name."""
    above = draft.parent(call)
    if isinstance(above, cst.Attribute):
        return above.attr.value in ("to", "cuda")
    names = {last_part(each.target) for each in above.targets} if isinstance(above, cst.Assign) else set()
    moves = (each for each in draft.nodes(cst.Attribute) if each.attr.value in ("to", "cuda"))
    return any(last_part(each.value) in names for each in moves)


def _left(evidence: Evidence, gpu: str) -> float:
    """What that GPU takes of the time that computing takes now."""
    peak = peak_of(gpu)
    by_memory = _SCALE * _BANDWIDTH / peak.bandwidth if peak is not None else _SCALE
    rows = evidence.operators
    calls = sum(row.count * (1.0 - row.loading_s / row.self_s if row.self_s else 1.0) for row in rows)
    computing_s = (evidence.step_s or 0.0) * (1.0 - evidence.shares.get("loader", 0.0))
    launching = calls * _LAUNCHING_S / computing_s if computing_s and not evidence.device_is_gpu else 0.0
    return min(1.0, max(by_memory, launching))


def _of_stage(evidence: Evidence, left: float) -> Estimate:
    """A stage on the CPU while the GPU waits: the operators between kernels go down to a fraction."""
    waiting = evidence.breakdown.mean_s("idle_operators") / max(evidence.inflation, 1.0)
    return evidence.what_if(Change(remove_host_s=waiting * (1 - left)))


def _unmet(record: RunRecord) -> tuple[str, ...]:
    return (
        ()
        if record.environment.cuda_available
        else ("PyTorch cannot use the GPU now: run nvidia-smi, look at its driver.",)
    )


def _option(draft: Draft) -> dict[str, str] | None:
    """``--device cuda``, where the script has that option and it is the CPU by default."""
    for call in draft.nodes(cst.Call):
        if m.matches(call, m.Call(func=m.Attribute(attr=m.Name("add_argument")))) and call.args:
            default = argument(call, "default")
            if string_value(call.args[0].value) == "--device" and default is not None:
                return {"--device": "cuda"} if string_value(default.value) == "cpu" else None
    return None


def _device_literal(draft: Draft) -> tuple[cst.BaseExpression, str] | None:
    """The "cpu" in the only ``device = "cpu"`` or ``torch.device("cpu")``, with the name, if that moves model and
    inputs."""
    found: list[tuple[cst.BaseExpression, str]] = []
    for assign in draft.nodes(cst.Assign):
        value = assign.value
        if isinstance(value, cst.Call) and full_name(draft, value.func) == "torch.device" and len(value.args) == 1:
            value = value.args[0].value
        if string_value(value) == "cpu" and len(assign.targets) == 1:
            name = draft.code(assign.targets[0].target)
            used = [call for call in draft.nodes(cst.Call) if moves_to(draft, call, name)]
            if len(used) >= 2:  # the model, and at least one input
                found.append((value, name))
    return found[0] if len(found) == 1 else None
