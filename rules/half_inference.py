"""Inference multiplies in float32 where the device is faster in 16 bits."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from advisor.edit import Draft, Drafts
from advisor.edit.aliases import other_calls, past_loading
from advisor.edit.born import makes_in_forward, module_code
from advisor.edit.calls import call_method
from advisor.edit.locate import call_at
from advisor.edit.models import binding, made_at
from advisor.edit.names import ensure_name, framework_used
from advisor.edit.precision.fills import overflowing_fill
from advisor.edit.precision.float32 import wide_meets_weights
from advisor.edit.sources import text_of
from advisor.evidence import Change
from advisor.evidence.gpu.matrix import is_depthwise
from advisor.evidence.halves import has_bf16, in_16_bits, linear_on_cpu, multiplies_sparse, no_faster, single_precision
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
    own_files,
    site_list,
    sites,
    where,
)

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import Model

# CPU seconds in bfloat16 over float32, measured with torch 2.15, one thread with avx512_bf16, whole forwards, input and
# output converted: three layers of 1536 on 256 rows (1.2 GFLOP a product) 0.45, an encoder of width 256 on 512 rows
# 0.54, six layers of 128 on 1024 rows (33 MFLOP) 0.61, four of 512 on 64 rows (33 MFLOP) 0.65; four convolutions of 64
# channels 0.60. AMX multiplies bfloat16 at up to 16 times float32's rate (Intel's manual); the factor is
# amp-autocast's.
_LARGE_FLOP, _LARGE_SCALE, _SMALL_SCALE, _CONVOLUTION_SCALE = 1e8, 0.45, 0.58, 0.55
_AMX_SCALE = 0.35
_UNITS = ("amx_bf16", "avx512_bf16")
# A call of a product takes so much longer in bfloat16, whatever its size: 4 layers of 128 on 1 row 0.080 ms for 0.020,
# 40 of 512 on 4 rows 1.66 for 3.68, 30 of 1024 on 4 rows 4.5 for 10.8 (torch 2.14, one thread of an EPYC). One row is
# no more work than reading the weights, which are half as many bytes: 0.65 and 0.67 of 6.4 and 2.5 ms, with two threads
# 0.42 to 0.58; a GPT-2 of 167 million weights that writes word by word 1.84 times as fast.
_CALL_S, _ONE_ROW_SCALE = 15e-6, 0.5
_ONE_ROW = re.compile(r"\[1,\d+\],\[\d+,\d+\]")
_LEAST_GAIN = 1.10  # the measured ratios spread too far to promise less
# Numbers of rows, say: ids among the features. bfloat16 has 8 bits for them, and 999 becomes 1000.
_WHOLE = re.compile(r"\](\.(long|int)\(\)|\.to\((dtype=)?torch\.(long|int|int64|int32)\))|\b(one_hot|bucketize)\(")
_MATRIX = re.compile(r"aten::(addmm|mm|bmm|baddbmm|mkldnn_convolution|_scaled_dot_product\w*)$")


class HalfInference(Rule):
    """A model that only infers keeps its weights in float32 on a device that multiplies 16 bits faster.

    With ``model.to(torch.bfloat16)`` once, products run on the processor's instructions for bfloat16 (AVX512_BF16,
    AMX) or on the GPU's Tensor Cores, and weights and activations are half as many bytes; unlike autocast it converts
    no weight again in each step. Floating-point inputs are converted where the model is called, and its output back to
    float32. GPUs without bfloat16 (before compute capability 8.0) get float16.

    When not: outputs are sensitive to rounding (bfloat16 has 8 bits: the advisor compares the outputs before it keeps
    the change) or leave float16's range; on a CPU, products are small and their weights in its caches, or convolutions
    depthwise.

    Source: Intel, "Intel 64 and IA-32 Architectures Optimization Reference Manual" (AVX512_BF16, AMX); by how much is
    measured on a CPU, on five models, and a prior on a GPU; PyTorch performance tuning guide, "Use mixed precision".
    """

    id = "half-inference"
    title = "Infer in 16 bits"
    safety = Safety.NUMERIC
    of_operators = True
    after = ("missing-eval", "missing-inference-mode")
    conflicts = ("amp-autocast",)

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        if record is None or evidence.trains or len(evidence.host.backward):
            return
        models = [each for each in record.models if each.parameters and each.calls]
        if len(models) != 1 or not _plain(models[0]):
            return
        (model,) = models
        found = _on_gpu(evidence) if evidence.device_is_gpu else _on_cpu(evidence)
        if found is None:
            return
        change, figures, summary = found
        gain = Gain.of(evidence.what_if(change))
        if gain.likely < _LEAST_GAIN:
            return
        forwards = forward_sites(evidence)
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{summary.removesuffix('.')}; the weights are never trained here.",
            gain=gain,
            evidence=figures,
            site=model.made or (forwards[0].site if forwards else None),
            parameters={
                "made": (model.made,) if model.made is not None else (),
                "forward": sites(forwards),
                "moves": sites(call_sites(evidence, "Module.to", "Module.eval", every_step=False)),
                "floats": any(each.dtype == "float32" for each in model.inputs),
                "tensor_first": model.tensor_first is not False,
                "output": model.output,
                "class": model.cls,
                "own": (model.file, *own_files(evidence)),
                "dtype": "float16" if evidence.device_is_gpu and not has_bf16(evidence) else "bfloat16",
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        dtype = str(finding.parameters.get("dtype", "bfloat16"))
        text = f"Convert the model {where(finding.site)} with .to(torch.{dtype}), its inputs likewise, its output back."
        forwards, drafts = site_list(finding, "forward"), Drafts(sources)
        if framework := next((name for site in forwards if (name := framework_used(drafts[site.file]))), ""):
            return Advice(text, f"{framework} runs the forward")
        if finding.parameters.get("output", "tensor") != "tensor":
            return Advice(text, "the model returns no single tensor that could be converted back")
        made = site_list(finding, "made")
        cls = str(finding.parameters.get("class", ""))
        for path in dict.fromkeys((*file_list(finding, "own"), *(site.file for site in made))):
            if not path or not sources.editable(path):
                continue
            if why := _mixes(drafts, drafts[path], dtype, cls):
                return Advice(text, why)
            if finding.parameters.get("floats") and (why := _counts(drafts[path], dtype)):
                return Advice(text, why)
        bound = next((each for site in made if (each := made_at(drafts, site))), None)
        if bound is None and forwards:
            bound = binding(drafts, forwards, site_list(finding, "moves"), ())
        if bound is None or not forwards:
            return Advice(text, "where the script makes its model, or calls it, cannot be told from the source")
        calls = []
        for site in forwards:
            call = call_at(drafts[site.file], site)
            if call is None:
                return Advice(text, "the call of the model cannot be told from others on its line")
            calls.append((drafts[site.file], call))
        bound = past_loading(bound)
        others = other_calls(bound, calls)
        if isinstance(others, str):
            return Advice(text, others)
        draft = bound.draft
        draft.insert_after(bound.statement, f"{bound.name}.to({ensure_name(draft, 'torch')}.{dtype})")
        if finding.parameters.get("floats") and not finding.parameters.get("tensor_first", True):
            return Advice(text, "what the model is called with is no single tensor")
        for draft, call in (*calls, *others):
            if why := _convert(draft, call, dtype if finding.parameters.get("floats") else ""):
                return Advice(text, why)
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
import torch

model = Net().eval()  # <- made=Net()
for x in batches:
    scores.append(model(x).argmax(1))  # <- forward=model(x)
""",
            after="""
import torch

model = Net().eval()
model.to(torch.bfloat16)
for x in batches:
    scores.append(model(x.to(torch.bfloat16)).float().argmax(1))
""",
            parameters={"floats": True, "output": "tensor"},
        ),
        Example(  # token numbers stay what they are
            before="""
import torch

class Service:
    def __init__(self):
        self.scorer = WindowScorer()  # <- made
        self.scorer.eval()

    def logits(self, tokens):
        return self.scorer(tokens)  # <- forward
""",
            after="""
import torch

class Service:
    def __init__(self):
        self.scorer = WindowScorer()
        self.scorer.to(torch.bfloat16)
        self.scorer.eval()

    def logits(self, tokens):
        return self.scorer(tokens).float()
""",
            parameters={"floats": False, "output": "tensor"},
        ),
        Example(  # all of its calls
            before="""
import torch

def load(path):
    net = Net()  # <- made
    net.load_state_dict(torch.load(path))
    return net.eval()

def score(scorer, x):
    return scorer(x).softmax(1)  # <- forward=scorer(x)

def main():
    model = load("net.pt")
    print(model, sum(p.numel() for p in model.parameters()), len(model.state_dict()))
    model(torch.zeros(1, 64))  # warm up
    for x in batches:
        score(model, x)
""",
            after="""
import torch

def load(path):
    net = Net()
    net.to(torch.bfloat16)
    net.load_state_dict(torch.load(path))
    return net.eval()

def score(scorer, x):
    return scorer(x.to(torch.bfloat16)).float().softmax(1)

def main():
    model = load("net.pt")
    print(model, sum(p.numel() for p in model.parameters()), len(model.state_dict()))
    model(torch.zeros(1, 64).to(torch.bfloat16)).float()  # warm up
    for x in batches:
        score(model, x)
""",
            parameters={"floats": True, "output": "tensor"},
        ),
        Example(  # behind what puts other weights in place of the model's
            before="""
import torch

net = Net()  # <- made
state = torch.load("net.pt")
net.load_state_dict(state, assign=True)
for x in batches:
    y = net(x)  # <- forward
""",
            after="""
import torch

net = Net()
state = torch.load("net.pt")
net.load_state_dict(state, assign=True)
net.to(torch.bfloat16)
for x in batches:
    y = net(x.to(torch.bfloat16)).float()
""",
            parameters={"floats": True, "output": "tensor"},
        ),
    )
    LEAVES_ALONE = (
        *(
            Example(
                f"import torch\nmodel = Net()  # <- made=Net()\n{code}\nfor x in xs:\n    y = model(x)  # <- forward\n",
                "",
                {"floats": True, "output": "tensor"},
            )
            for code in (
                "keys = model.encode(queries)",
                "torch.save(model.state_dict(), path)",  # weights in 16 bits
                "state = {k: v.cpu() for k, v in model.state_dict().items()}",
                "other.load_state_dict(model.state_dict())",
                "model.float()",
                "model = model.to(torch.float32)",
                "model.eval().to(device, dtype=torch.float32)",
                "print(model.head.weight.mean())",
                "summary(model, (3, 224, 224))",
                "backup = model.to('cpu')",
                "nets = [model, other]",
                "if args.large:\n    model = Large()",
                "def score(net, x):\n    return net.encode(x)\nscore(model, queries)",
            )
        ),
        Example(
            """
import torch

class Service:
    def __init__(self):
        self.net = Net()  # <- made

    def predict(self, x):
        return self.net(x)  # <- forward=self.net(x)

    def explain(self, x):
        return self.net(x), self.net.features(x)
""",
            "",
            {"floats": True, "output": "tensor"},
        ),
        Example(  # numbers of rows among the features
            """
import torch

class Table(torch.nn.Module):
    def forward(self, rows):
        return self.out(self.users(rows[:, 0].long()) + self.given(rows[:, 1:]))

model = Table()  # <- made=Table()
for x in batches:
    y = model(x)  # <- forward
""",
            "",
            {"floats": True, "output": "tensor"},
        ),
        Example(  # two models take turns
            """
import torch

def score(net, x):
    return net(x)  # <- forward

small = Small()  # <- made
for x in batches:
    score(small, x)
print(score(large, x))
""",
            "",
            {"floats": True, "output": "tensor"},
        ),
        Example(  # its state would stay float32
            """
import torch

class Cell(torch.nn.Module):
    def forward(self, x):
        return self.inner(x, torch.zeros(4, 8))

net = Cell()  # <- made
y = net(x)  # <- forward
""",
            "",
            {"floats": True, "output": "tensor"},
        ),
        *(
            Example(
                f"""
import torch
import torch.nn.functional as F

class Net(torch.nn.Module):
    def forward(self, q, k, v):
        scores = q @ k.transpose(-2, -1)
{code}

net = Net()  # <- made
y = net(x)  # <- forward
""",
                "",
                {"floats": True, "output": "tensor", "class": "Net", "dtype": "float16"},
            )
            for code in (
                "        return F.softmax(scores, -1, dtype=torch.float32) @ v",
                "        return scores.masked_fill(scores == 0, -1e9).softmax(-1) @ v",
            )
        ),
        Example(  # puts float32 back
            """
import torch

def load(net, path):
    net.load_state_dict(torch.load(path), assign=True)

net = Net()  # <- made
load(net, "net.pt")
y = net(x)  # <- forward
""",
            "",
            {"floats": True, "output": "tensor"},
        ),
        Example(
            "import torch\nnet = Net()  # <- made\ny = net(x)  # <- forward\n", "", {"floats": True, "output": "Output"}
        ),
        Example(
            "import torch\nnet = Net()  # <- made\ny = net(batch)  # <- forward\n",
            "",
            {"floats": True, "output": "tensor", "tensor_first": False},
        ),
        Example(
            "import torch\nnet = Net()  # <- made\ny = net(**batch)  # <- forward\n",
            "",
            {"floats": True, "output": "tensor"},
        ),
    )


def _on_cpu(evidence: Evidence) -> tuple[Change, dict[str, float | str | None], str] | None:
    flags = evidence.record.environment.cpu_flags if evidence.record is not None else []
    unit = next((flag for flag in _UNITS if flag in flags), None)
    rows = [row for row in evidence.operators if _MATRIX.match(row.name)]
    flops, calls = evidence.flops, sum(row.count for row in rows)
    if unit is None or not flops.per_step or flops.uncounted >= 0.25 * calls:
        return None
    if not rows or any(is_depthwise(shape) for row in rows for shape in row.shapes):
        return None
    if multiplies_sparse((row.name for row in evidence.operators), map(text_of, model_files(evidence))):
        return None
    products = _LARGE_SCALE if flops.per_step >= _LARGE_FLOP * calls else _SMALL_SCALE
    scale = {row.name: _CONVOLUTION_SCALE if "conv" in row.name else products for row in rows}
    if unit == "amx_bf16":
        scale = dict.fromkeys(scale, _AMX_SCALE)
    scale |= {name: left for name, left in linear_on_cpu(evidence, products).items() if name in scale}
    for row in rows:
        if row.shapes and all(map(_ONE_ROW.search, row.shapes)):
            scale[row.name] = _ONE_ROW_SCALE
    share = sum(row.share for row in rows)
    figures: dict[str, float | str | None] = {
        "matrix_operator_share": share,
        "instructions": unit,
        "flops_per_step": flops.per_step,
    }
    summary = f"{share:.0%} of the step is matrix operators in float32 on a CPU with {unit}."
    left = no_faster(evidence, scale)
    for row in rows:
        left[row.name] += _CALL_S * row.count / row.self_s if row.self_s else 0.0
    return Change(operator_scale=left), figures, summary


def _on_gpu(evidence: Evidence) -> tuple[Change, dict[str, float | str | None], str] | None:
    single = single_precision(evidence)
    if single is None:
        return None
    figures: dict[str, float | str | None] = {
        "float32_matrix_share": single.share,
        "matrix_off_tensor_cores_share": single.off,
    }
    return Change(kernel_scale=in_16_bits(evidence, single)), figures, single.summary


def _plain(model: Model) -> bool:
    """Float32 throughout, its outputs too, without autocast, and not recorded for a backward."""
    if model.output_dtype not in ("", "float32"):
        return False
    return set(model.dtypes) == {"float32"} and not model.autocast and not model.output_grad and not model.compiled


_MAKERS = (
    "zeros",
    "ones",
    "empty",
    "full",
    "rand",
    "randn",
    "linspace",
    "eye",
    "tensor",
    "from_numpy",
    "float",
)


def _counts(draft: Draft, dtype: str) -> str:
    """Why the modules of a file cannot be given floats in `dtype`: they make whole numbers of some."""
    found = any(_WHOLE.search(draft.code(each)) for each in module_code(draft))
    return f"whole numbers are made of floats, of which {dtype} has few above 256, or 2048" if found else ""


def _mixes(drafts: Drafts, draft: Draft, dtype: str, model: str) -> str:
    """Why the modules of a file, of which `model` is the one that the script calls, cannot compute in `dtype`."""
    if makes_in_forward(draft, _MAKERS, "dtype", ("type_as",)):
        return f"methods of its modules make float32 tensors, which do not multiply with {dtype}"
    line = wide_meets_weights(drafts, draft, model)
    if line is not None:
        place = f"{os.path.basename(draft.source.path)}:{line}"
        return f"tensors made in float32 meet {dtype} ones at {place}: convert them to the type of those, x.to(y.dtype)"
    return overflowing_fill(drafts, draft, dtype, within=module_code(draft))


def _convert(draft: Draft, call: cst.Call, dtype: str) -> str:
    """Have the call take `dtype`, unless it is given no floats, and give float32; why not, otherwise."""
    if dtype:
        if len(call.args) != 1 or call.args[0].star or call.args[0].keyword is not None:
            return "what the model is called with is no single expression"
        call_method(draft, call.args[0].value, "to", f"{ensure_name(draft, 'torch')}.{dtype}")
    above = draft.parent(call)
    if isinstance(above, cst.Attribute) and above.attr.value == "float":
        return ""
    call_method(draft, call, "float")
    return ""
