"""Convolutions run on NCHW tensors where the device's convolutions want NHWC."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from advisor.edit import Drafts
from advisor.edit.calls import add_argument, argument, call_method, unpacked
from advisor.edit.gradients.optimizer_state import loads_fused_state
from advisor.edit.locate import call_at
from advisor.edit.models import Binding, binding, model_name
from advisor.edit.names import ensure_name, last_part, plain_name
from advisor.edit.scopes import scope_of
from advisor.edit.views import reshape_views, with_imports
from advisor.evidence import Change
from advisor.evidence.convolutions import convolution_kinds
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
    model_files,
    once_fed,
    optimizer_sites,
    site_list,
    sites,
    where,
)

if TYPE_CHECKING:
    from advisor.edit import Draft, Edit, Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import CallSite, Model, RunRecord

# cuDNN's own conversions between the layouts, by the names of their kernels: gone altogether.
_CONVERSION = re.compile(r"nchwToNhwc|nhwcToNchw|nchw_to_nhwc|nhwc_to_nchw", re.IGNORECASE)
# Convolutions on Tensor Cores, in their native layout (channels-last tutorial: 22 % on ResNet-50 with AMP; 8 to 35 %
# over other models, conversions included).
_GPU_SCALE = 0.9
# A CPU's operators in NHWC over those in NCHW, forward and backward. Measured with torch 2.15 on AVX-512, two threads:
# depthwise convolutions of 16 to 96 channels and 28 to 112 pixels 0.18 to 0.63; dense ones of 3x3 0.98 (0.79 to 1.07),
# of 1x1 0.86. Of whole steps ResNet-18 at 64 and 96 pixels 1.07 and 1.01, MobileNetV2 0.91, EfficientNet-B0 0.75,
# MNASNet 0.54, three blocks with 7x7 depthwise convolutions 0.58, three dense ones with max pooling 0.70. With one
# thread ResNet-18 at 96 pixels 0.87 and at 32 pixels 1.13.
_CPU_DEPTHWISE, _CPU_POINTWISE, _CPU_DENSE, _CPU_POOL = 0.45, 0.86, 0.97, 0.7
_CPU_PIXELS = 64 * 64  # smaller images than these do not gain on a CPU
_CPU_POOLING = re.compile(r"aten::\w*_pool2d\w*$")
_BASIS = "prior: convolutions 10 to 15 % faster in their native layout"
_ON_CPU = "prior: depthwise convolutions take 0.45, pooling 0.7 of their time in NHWC (measured on a CPU)"
_LEAST_ON_CPU = 1.10  # what the prior says spreads too far to promise less: 1.07 was 0.98 when measured
# Of several models with convolutions the trace does not tell whose they are, and one is converted: a distillation's
# teacher and student, 1.11, were 0.96.
_LEAST_OF_SEVERAL = 1.25
_OLD_ORDER = (
    "a checkpoint from before this change gives the fused optimizer its state in another order of memory than the "
    "weights', which its step does not notice: convert the state along with the weights"
)
# Written out, these are no tensor, whatever is in them.
_NO_TENSOR = (
    cst.BaseDict,
    cst.BaseList,
    cst.BaseSet,
    cst.BaseComp,
    cst.Tuple,
    cst.BaseString,
    cst.BaseNumber,
    cst.Lambda,
)


class ChannelsLast(Rule):
    """A convolutional model keeps its tensors in NCHW order, and the device's convolutions work in NHWC.

    Tensor Cores (and oneDNN on a CPU) convolve with the channels innermost; given NCHW tensors, each convolution
    converts its input, or runs a slower algorithm. ``memory_format=torch.channels_last`` changes the order in memory
    only: shapes and code stay the same. Model and input are both converted; operators then hand the format on.

    When not: models with few convolutions, or operators that do not keep the format (they convert back and forth);
    float32 on a GPU without TF32; small images on a CPU (below about 64x64 it gets slower).

    Source: PyTorch tutorial "Channels Last Memory Format in PyTorch"; performance tuning guide. The gain beyond the
    conversions seen in the trace is a prior.
    """

    id = "channels-last"
    title = "Keep images in channels-last order"
    safety = Safety.NUMERIC
    of_operators = True
    after = ("amp-autocast",)

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        model = _convolutional(record) if record is not None else None
        if record is not None and model is None:
            return
        if evidence.device_is_gpu:
            found = _on_gpu(evidence)
        else:
            found = _on_cpu(evidence, model) if model is not None else None
        if found is None:
            return
        change, figures, summary = found
        estimate, fed = once_fed(evidence, change)
        # What conversions take was seen; the rest is a prior.
        basis = _BASIS if evidence.device_is_gpu else _ON_CPU
        gain = Gain.prior(estimate, basis) if model is not None else Gain.of(estimate)
        least = _LEAST_OF_SEVERAL if record is not None and _several(record) else _LEAST_ON_CPU
        if not gain.worth_it or (not evidence.device_is_gpu and gain.likely < least):
            return
        name = model.cls if model is not None else ""

        def of_model(found: tuple[CallSite, ...]) -> tuple[CallSite, ...]:
            return tuple(each for each in found if not name or each.details.get("module", name) == name)

        forwards = of_model(forward_sites(evidence))
        moves = of_model(call_sites(evidence, "Module.to", "Module.cuda", "Module.eval", every_step=False))
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=summary + fed,
            gain=gain,
            evidence={"convolutions": _convolutions(model) if model is not None else None, **figures},
            site=forwards[0].site if forwards else None,
            parameters={
                "forward": sites(forwards),
                "moves": sites(moves),
                "optimizer": optimizer_sites(evidence),
                "packed": model is not None and not model.tensor_first,
                "own": model_files(evidence),
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        text = f"Convert the model called {where(finding.site)}, and its input, to memory_format=torch.channels_last."
        forwards = site_list(finding, "forward")
        if not forwards:
            return Advice(text, "the place of the forward is unknown")
        if finding.parameters.get("packed"):
            return Advice(text, "what the model is called with first is no tensor itself: the images are inside it")
        drafts = Drafts(sources)
        bound = binding(drafts, forwards, site_list(finding, "moves"), site_list(finding, "optimizer"))
        if bound is None:
            return Advice(text, "where the script makes its model cannot be told from the source")
        if _initialized_behind(bound):
            return Advice(text, "orthogonal_ needs views of the weights, which raise in channels-last memory")
        _convert_model(bound)
        files, names = [bound.draft], {bound.name.rpartition(".")[2]}
        for site in forwards:
            draft = drafts[site.file]
            call = call_at(draft, site)
            if call is None or not _convert_input(draft, call):
                return Advice(text, "what the model is called with is no single expression")
            files.append(draft)
            names.add(last_part(call.func))
        files += [drafts[path] for path in file_list(finding, "own") if sources.has(path)]
        if loads_fused_state(files):
            return Advice(text, _OLD_ORDER)
        # A view that merges channels with pixels raises in this format, also of what an evaluation computes.
        if why := reshape_views(with_imports(drafts, files), names):
            return Advice(text, why)
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
import torch

model = resnet18().to(device)  # <- moves
optimizer = SGD(model.parameters(), lr=0.1)  # <- optimizer
for images, labels in loader:
    images = images.to(device)
    out = model(images)  # <- forward
""",
            after="""
import torch

model = resnet18().to(device, memory_format=torch.channels_last)
optimizer = SGD(model.parameters(), lr=0.1)
for images, labels in loader:
    images = images.to(device)
    out = model(images.to(memory_format=torch.channels_last))
""",
        ),
        Example(
            before="""
import torch as th

class Trainer:
    def __init__(self):
        self.model = Net(
            depth=18,  # as in the paper
        )
        self.model.cuda()  # <- moves

    def step(self, x):
        return self.model(x / 255)  # <- forward
""",
            after="""
import torch as th

class Trainer:
    def __init__(self):
        self.model = Net(
            depth=18,  # as in the paper
        )
        self.model.cuda().to(memory_format=th.channels_last)

    def step(self, x):
        return self.model((x / 255).to(memory_format=th.channels_last))
""",
        ),
        Example(  # never moved: the optimizer names the model
            before="""
import torch

def main():
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)  # <- optimizer
    train(net, opt)

def train(model, opt):
    loss = loss_fn(model(x), y)  # <- forward=model(x)
""",
            after="""
import torch

def main():
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    net.to(memory_format=torch.channels_last)
    train(net, opt)

def train(model, opt):
    loss = loss_fn(model(x.to(memory_format=torch.channels_last)), y)
""",
        ),
        Example(
            before="import torch\nmodel = Net()\nmodel.eval()  # <- moves\nout = model(x)  # <- forward\n",
            after="import torch\nmodel = Net()\nmodel.eval()\nmodel.to(memory_format=torch.channels_last)\n"
            "out = model(x.to(memory_format=torch.channels_last))\n",
        ),
        Example(  # it is the picture that LBFGS changes; what a step without `fused` loads may have any order
            before="""
import torch

model = Net().to(device)  # <- moves
opt, other = torch.optim.LBFGS([picture]), torch.optim.Adam(model.parameters(), fused=False)
other.load_state_dict(torch.load(path)["opt"])
out = model(picture)  # <- forward
""",
            after="""
import torch

model = Net().to(device, memory_format=torch.channels_last)
opt, other = torch.optim.LBFGS([picture]), torch.optim.Adam(model.parameters(), fused=False)
other.load_state_dict(torch.load(path)["opt"])
out = model(picture.to(memory_format=torch.channels_last))
""",
        ),
        Example(  # a view would raise
            before="""
import torch
from torch import nn

def pooled(x, n):
    return x.view(n, -1)

class Net(nn.Module):
    def forward(self, x):
        x = self.pool(self.conv(x))
        bits = x.view(torch.int32)
        y = x.transpose(1, 2).contiguous().view(x.size(0), -1)
        return self.fc(x.view(-1, 16 * 5 * 5)) + self.score(pooled(x, 4)) + y

def dice(pred, target):
    return (pred.view(-1) * target.view(-1)).sum()

class Images(Dataset):
    def __getitem__(self, i):
        return self.images[i].view(-1)

net = Net().to(device)  # <- moves
for x, y in loader:
    out = net(x)  # <- forward
    loss = dice(out, y) + criterion(out.view(4, -1), y.view(4, -1))
""",
            after="""
import torch
from torch import nn

def pooled(x, n):
    return x.reshape(n, -1)

class Net(nn.Module):
    def forward(self, x):
        x = self.pool(self.conv(x))
        bits = x.view(torch.int32)
        y = x.transpose(1, 2).contiguous().view(x.size(0), -1)
        return self.fc(x.reshape(-1, 16 * 5 * 5)) + self.score(pooled(x, 4)) + y

def dice(pred, target):
    return (pred.reshape(-1) * target.view(-1)).sum()

class Images(Dataset):
    def __getitem__(self, i):
        return self.images[i].view(-1)

net = Net().to(device, memory_format=torch.channels_last)
for x, y in loader:
    out = net(x.to(memory_format=torch.channels_last))
    loss = dice(out, y) + criterion(out.reshape(4, -1), y.view(4, -1))
""",
        ),
        Example(  # what comes of the output, under whatever name, and what an evaluation computes
            before="""
import torch
from torch import nn

def loss_function(recon_x, x, mu):
    seen = torch.zeros(9)
    seen.view(3, 3)[0] = 1
    return bce(recon_x.view(-1, 12288), x.view(-1, 12288)) + mu.pow(2).sum()

def dice(pred, target):
    return (pred.view(-1) * target.view(-1)).sum()

def evaluate(net, loader):
    for x, y in loader:
        out = net(x)
        errors.append(((out[0] - x) ** 2).view(len(x), -1).mean(1))
        labels.append(y.view(-1))

model = nn.Sequential(Encoder(), Lambda(lambda x: x.view(x.size(0), -1)), head)
model.to(device)  # <- moves
for x, y in loader:
    recon, mu, logits = model(x)  # <- forward
    probs = softmax(logits, 1)
    loss = loss_function(recon, x, mu) + dice(probs, y)
evaluate(model, held_out)
""",
            after="""
import torch
from torch import nn

def loss_function(recon_x, x, mu):
    seen = torch.zeros(9)
    seen.view(3, 3)[0] = 1
    return bce(recon_x.reshape(-1, 12288), x.view(-1, 12288)) + mu.pow(2).sum()

def dice(pred, target):
    return (pred.reshape(-1) * target.view(-1)).sum()

def evaluate(net, loader):
    for x, y in loader:
        out = net(x)
        errors.append(((out[0] - x) ** 2).reshape(len(x), -1).mean(1))
        labels.append(y.view(-1))

model = nn.Sequential(Encoder(), Lambda(lambda x: x.reshape(x.size(0), -1)), head)
model.to(device, memory_format=torch.channels_last)
for x, y in loader:
    recon, mu, logits = model(x.to(memory_format=torch.channels_last))
    probs = softmax(logits, 1)
    loss = loss_function(recon, x, mu) + dice(probs, y)
evaluate(model, held_out)
""",
        ),
    )
    LEAVES_ALONE = (
        *(  # raises; computes something else with moments in the order that weights had before
            Example(f"import torch\nmodel = Net().to(device)  # <- moves\n{code}\nout = model(x)  # <- forward\n", "")
            for code in (
                "opt = torch.optim.LBFGS(model.parameters())",
                "from torch.nn.utils import prune\nprune.l1_unstructured(model.conv, 'weight', 0.3)",
                "model.apply(lambda m: torch.nn.init.orthogonal_(m.weight))",
                "for p in model.parameters():\n    torch.nn.init.orthogonal_(p)",
                "opt = torch.optim.Adam(model.parameters(), fused=True)\nopt.load_state_dict(torch.load(path)['opt'])",
            )
        ),
        Example(  # the same of what comes of the output
            """
import torch

def evaluate(net, loader):
    for x, y in loader:
        mask = net(x).sigmoid() > 0.5
        mask.view(-1)[ignored] = False

net = Net().to(device)  # <- moves
out = net(x)  # <- forward
evaluate(net, loader)
""",
            "",
        ),
        Example(  # of a copy, the tensor would stay what it was
            """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        x = self.conv(x)
        x.view(-1)[self.dropped] = 0
        return x

net = Net().to(device)  # <- moves
out = net(x)  # <- forward
""",
            "",
        ),
        Example("import torch\nmodel = Net().to(device)  # <- moves\nout = model(**batch)  # <- forward\n", ""),
        Example("import torch\nout = self.models[0](x)  # <- forward\n", ""),
        Example(
            "import torch\nmodel = Net().to(device)  # <- moves\nout = model(x)  # <- forward\n", "", {"packed": True}
        ),
        *(
            Example(f"import torch\nmodel = Net().to(device)  # <- moves\nout = model({code})  # <- forward\n", "")
            for code in ("[x, y]", "(x, mask)", "{'image': x}", "[each for each in x]", "{k: v for k, v in x}")
        ),
    )


# The numbers ------------------------------------------------------------------------------------------------------


def _convolutions(model: Model) -> int:
    return sum(count for name, count in model.layers.items() if name in ("Conv2d", "ConvTranspose2d"))


def _several(record: RunRecord) -> bool:
    return sum(bool(each.calls) and _convolutions(each) >= 2 for each in record.models) > 1


def _convolutional(record: RunRecord) -> Model | None:
    """The model with the most 2-d convolutions, if it is called on images that are not in channels-last order."""
    models = [each for each in record.models if _convolutions(each) >= 2 and not each.channels_last]
    # Module.to() hands the order of four dimensions to parameters of five, too, which raises.
    models = [each for each in models if not any(layer.endswith("Conv3d") for layer in each.layers)]
    models = [each for each in models if any(len(tensor.shape) == 4 for tensor in each.inputs[:1])]
    return max(models, key=_convolutions, default=None)


_Found = tuple[Change, dict[str, float | int | str | bool | None], str]


def _on_gpu(evidence: Evidence) -> _Found | None:
    conversions = [row for row in evidence.kernels if _CONVERSION.search(row.name)]
    native = [row for row in evidence.kernels if row.kind == "conv" and row.matrix == "on"]
    share, native_share = sum(row.share for row in conversions), sum(row.share for row in native)
    if evidence.record is None or evidence.compiled:
        # How much a convolution gains beyond its conversions is known for whole models only; Inductor chooses the order
        # itself, and convolves in NHWC (pytorch/pytorch, issue 99773).
        native = []
    if not conversions and not native:
        return None
    scale = {row.name: 0.0 for row in conversions} | {row.name: _GPU_SCALE for row in native if row not in conversions}
    figures: dict[str, float | int | str | bool | None] = {
        "layout_conversion_share": share,
        "tensor_core_convolution_share": native_share,
    }
    summary = f"{share:.0%} of the kernels' time converts between NCHW and NHWC; {native_share:.0%} is convolutions on "
    return Change(kernel_scale=scale), figures, summary + "Tensor Cores, which work in NHWC."


def _on_cpu(evidence: Evidence, model: Model) -> _Found | None:
    height, width = model.inputs[0].shape[2:]
    kinds = convolution_kinds(evidence.detail)
    convolutions = [row for row in evidence.operators if row.name in kinds]
    pools = [row for row in evidence.operators if _CPU_POOLING.match(row.name)]
    if height * width < _CPU_PIXELS or not convolutions:
        return None
    scale = {row.name: _CPU_POOL for row in pools}
    # By themselves those of 1x1 were seen to gain between depthwise ones only.
    pointwise = _CPU_POINTWISE if any(each.depthwise for each in kinds.values()) else _CPU_DENSE
    for name, part in kinds.items():
        dense = 1.0 - part.depthwise - part.pointwise
        scale[name] = part.depthwise * _CPU_DEPTHWISE + part.pointwise * pointwise + dense * _CPU_DENSE
    per_channel = sum(row.share * kinds[row.name].depthwise for row in convolutions)
    pooling = sum(row.share for row in pools)
    figures: dict[str, float | int | str | bool | None] = {
        "depthwise_convolution_share": per_channel,
        "pooling_share": pooling,
        "image_size": f"{height}x{width}",
    }
    parts = [(per_channel, "depthwise convolutions"), (pooling, "pooling")]
    named = " and ".join(f"{share:.0%} {what}" for share, what in parts if share >= 0.01)
    summary = f"Of the step {named} of {height}x{width} images in NCHW order."
    return Change(operator_scale=scale), figures, summary


# The edit ---------------------------------------------------------------------------------------------------------


def _convert_model(bound: Binding) -> None:
    """Have the model converted where it is moved, else right behind the statement that binds it."""
    draft, call = bound.draft, bound.moved
    channels_last = f"{ensure_name(draft, 'torch')}.channels_last"
    method = call.func.attr.value if call is not None and isinstance(call.func, cst.Attribute) else ""
    if call is not None and method == "to" and argument(call, "memory_format") is None and not unpacked(call):
        add_argument(draft, call, "memory_format", channels_last)
    elif call is not None and method == "cuda":
        call_method(draft, call, "to", f"memory_format={channels_last}")
    else:
        draft.insert_after(bound.statement, f"{bound.name}.to(memory_format={channels_last})")


def _initialized_behind(bound: Binding) -> bool:
    """Whether the script gives the weights orthogonal values once the model is converted: ``model.apply(init)``."""
    draft, scope = bound.draft, scope_of(bound.draft, bound.statement)
    calls = [each for each in draft.nodes(cst.Call) if draft.line(each) > draft.line(bound.statement)]
    here = [plain_name(each.func) for each in calls if scope_of(draft, each) is scope]
    applied = any(each == f"{bound.name}.apply" or each.rpartition(".")[2] == "orthogonal_" for each in here)
    return "orthogonal_" in draft.source.text and applied


def _convert_input(draft: Draft, call: cst.Call) -> bool:
    if not model_name(draft, call) or not call.args:
        return False
    first = call.args[0]
    if first.star or first.keyword is not None or isinstance(first.value, _NO_TENSOR):
        return False
    channels_last = f"{ensure_name(draft, 'torch')}.channels_last"
    call_method(draft, first.value, "to", f"memory_format={channels_last}")
    return True
