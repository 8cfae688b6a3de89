"""Matrix work runs in float32 where the device computes faster in 16 bits."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Drafts
from advisor.edit.born import PLAIN, RANDOM
from advisor.edit.gradients.derivatives import differentiates_twice
from advisor.edit.gradients.own_functions import untold_function
from advisor.edit.names import framework_used
from advisor.edit.precision.autocast import FLOAT32_ON_GPU, wrap_forwards
from advisor.edit.precision.fills import overflowing_fill
from advisor.edit.precision.grad_scaler import scale_loss
from advisor.edit.sources import text_of
from advisor.evidence import Change
from advisor.evidence.gpu.matrix import is_depthwise, is_narrow
from advisor.evidence.halves import (
    casting_s,
    casts_on_host_s,
    few_rows,
    has_bf16,
    in_16_bits,
    is_amd,
    linear_on_cpu,
    linear_with_casts,
    multiplies_sparse,
    no_faster,
    scaling_s,
    single_precision,
)
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
    framework_of,
    model_files,
    once_fed,
    optimizer_sites,
    own_files,
    site_list,
    sites,
    where,
)
from advisor.shared.frameworks import configured, construction, framework_set_up, told

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.evidence.facts import OperatorRow
    from advisor.harness.layout import CallSite, RunRecord

# Casting beyond this share of the products that it is for: they are about reading weights, which casting does, too.
_MOST_CASTING = 0.2
# The time of a CPU's matrix operators in 16 bits over float32's, casts of weights aside. Fitted to training steps
# measured with torch 2.15, avx512_bf16, two quiet cores, float32 over autocast: ResNet-18 of 32, 96, 224 pixel images
# 1.19, 1.65, 1.72, a small convolutional net 2.3, an MLP 1.85, a transformer encoder 1.48, an LSTM 1.47; depthwise
# convolutions get slower (MobileNetV2 0.8), those of 3 to 48 channels gain nothing (0.98), nor do those along a
# signal, of 24 to 96 (1.04). AMX multiplies bfloat16 at up to 16 times float32's rate (Intel's manual).
_CPU_SCALE = {"amx_bf16": 0.35, "avx512_bf16": 0.45}
# Attention's fused kernels have no use for 16 bits there: of 24 to 512 tokens, heads of 16 to 64, 0.85 to 1.05 forward
# and, with the backward, 0.94 to 1.2 from 256 tokens on, 2.0 to 4.1 of fewer (torch 2.15, avx512_bf16, two cores; on
# AMD's with it the same, 1.07 of 256 and 2.1 to 3.1 of 41 to 128, which is 2.6 to 3.9 of the backward alone).
_ATTENTION, _ATTENTION_BACKWARD, _ATTENTION_BACKWARD_SHORT, _MANY_TOKENS = 1.0, 1.3, 3.0, 256
_TOKENS = re.compile(r"\[\[\d+,\d+,(\d+),\d+\]")
# On AMD's the backward of 16,000 tokens (of all heads) takes 19 to 39 ms, 24 in the middle, whether each sequence has
# 16 or 512 of them, and heads are 16 or 64 wide, where float32 takes 2.4 to 35: 1.3 us of two cores for a token, beside
# products that are as much faster as others are. The forward takes 0.86 to 2.15 of float32's, 1.22 in the middle
# (30 shapes, torch 2.14, two cores). A forecaster's three layers, 42 tokens: 2.8 ms became 22.3, and the step gained
# nothing, 0.98, where 1.1 to 1.5 was predicted with the figures above.
_AMD_ATTENTION, _AMD_TOKEN_CORE_S, _AMD_THREADS = 1.22, 2.6e-6, 2  # nobody has measured more threads
_HEADS_TOKENS = re.compile(r"\[\[(\d+),(\d+),(\d+),\d+\]")
# In NHWC convolutions gain less (3x3 of 32 to 256 channels 0.54 to 0.76, where NCHW has 0.31 to 0.76), and norms lose,
# forward and backward together (batch norms 1.3 to 2.2, group norms 0.95 to 5.3).
_NHWC_CONVOLUTION, _NHWC_NORMS = 0.65, {"batch_norm": 1.5, "group_norm": 3.0}
# Seconds: casting one weight to 16 bits and its gradient back moves 12 bytes through memory; and what a cast costs
# whatever its size. ResNet-18's 11 million weights take 13 of its 63 ms at 32 pixels: that is why it gains so little.
_CAST_WEIGHT_S, _CAST_S = 1.2e-9, 10e-6
# Operators that are smaller on average gain nothing: what autocast casts, activations too, takes longer than it saves.
# Float32 over autocast, by the mean size of the matrix operators: 8 MFLOP (64x256x256) 0.89, 10 MFLOP (a contrastive
# encoder) 1.00, 17 MFLOP (32x512x512) 1.05, 24 MFLOP (a vision transformer of width 64) 0.50; gains from 180 MFLOP on.
_LEAST_FLOP = 4e7
# Of the products' FLOP: with fewer in float32 it is not they that the step takes its time for.
_LEAST_SINGLE = 0.5
# Seconds of one whose size was not seen, for the run ended before: so many FLOP take two cores half a millisecond.
_LEAST_S = 2e-3
# nn.TransformerEncoder in inference: with autocast it leaves this path, or fails in it where a padding mask is given.
# Solvers whose step follows the error: with eight bits it never gets as small as they are asked for.
_ADAPTS = re.compile(r"\b(odeint|odeint_adjoint|odeint_event|solve_ivp|sdeint|cdeint)\(")
# Under autocast, too, unless they are told otherwise.
_MAKES_FLOAT32 = {each for each in PLAIN | RANDOM if "like" not in each} | {"linspace"}
# pytorch issues 41069 and 144040: none of COO, and of CSR none backwards.
_SPARSE = (
    "Products with sparse matrices are not implemented in 16 bits: keep them out of it, with "
    'torch.autocast("cuda", enabled=False) around them and x.float() in.'
)
_FAST_PATH = "aten::_transformer_encoder_layer_fwd"
# The scales above spread too far to promise less: for 1.18 0.98 was measured (a text encoder of width 192, AMD).
_LEAST_ON_CPU = 1.20
_CPU_MATRIX = re.compile(
    r"aten::(addmm|mm|bmm|baddbmm|mkldnn_convolution|convolution_backward|_scaled_dot_product\w*)$"
)

_FRAMEWORKS = {
    "transformers": "Pass TrainingArguments({short}=True).",
    "lightning": 'Pass Trainer(precision="{long}-mixed").',
    "accelerate": 'Pass Accelerator(mixed_precision="{short}").',
}
_SHORT, _LONG = {"float16": "fp16", "bfloat16": "bf16"}, {"float16": "16", "bfloat16": "bf16"}


class AmpAutocast(Rule):
    """Matrix products and convolutions run in float32 where the device has faster 16-bit units for them.

    ``torch.autocast`` runs matrix work in bfloat16 (or float16) and keeps what needs the range in float32;
    parameters, gradients and optimizer stay as they are. Around forward and loss, not around backward. bfloat16 has
    float32's range and needs nothing else; float16, for GPUs without native bfloat16 (before compute capability 8.0),
    needs a ``GradScaler`` so that small gradients survive. The trigger is measured: float32 matrix kernels, off the
    Tensor Cores or on them as TF32; on a CPU matrix operators, and only with instructions for bfloat16 (AVX512_BF16,
    AMX) with which a product and a convolution were measured to take less time than in float32.

    When not: the loss is sensitive to rounding (compare the loss curves); custom CUDA operators expect float32;
    models of depthwise convolutions on a CPU get slower.

    Source: PyTorch, "Automatic Mixed Precision package" and its recipe; NVIDIA, "Train With Mixed Precision".
    """

    id = "amp-autocast"
    title = "Compute forward and loss in 16 bits with autocast"
    safety = Safety.NUMERIC
    of_operators = True
    after = ("loader-workers",)

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        if record is not None and (not _all_float32(record) or _inside_framework(evidence)):
            return
        found = _on_gpu(evidence) if evidence.device_is_gpu else _on_cpu(evidence)
        if found is None:
            return
        change, figures, summary = found
        estimate, fed = once_fed(evidence, change)
        gain = Gain.of(estimate)
        if not gain.worth_it or (not evidence.device_is_gpu and gain.likely < _LEAST_ON_CPU):
            return
        forwards = sites(forward_sites(evidence))
        fp16 = evidence.device_is_gpu and not has_bf16(evidence)
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=summary + fed,
            gain=gain,
            evidence=figures,
            site=forwards[0] if forwards else None,
            parameters={
                "forward": forwards,
                "backward": sites(call_sites(evidence, "backward")),
                "step": sites(call_sites(evidence, "Optimizer.step")),
                "optimizer": optimizer_sites(evidence),
                "own": own_files(evidence),
                "device": "cuda" if evidence.device_is_gpu else "cpu",
                "dtype": "float16" if fp16 else "bfloat16",
                "framework": _framework(record),
                **construction(evidence),
                "scales": fp16 and evidence.trains,
                "switched_off": sites(_switched_off(evidence)),
                "fused": record is not None and any(each.fused for each in record.optimizers),
            },
            unmet=_unmet(evidence),
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        dtype, device = str(finding.parameters.get("dtype", "bfloat16")), str(finding.parameters.get("device", "cuda"))
        text = f'Run forward and loss under torch.autocast("{device}", dtype=torch.{dtype}) {where(finding.site)}'
        scales = dtype == "float16" and finding.parameters.get("scales", True)
        text += ", with a GradScaler around backward and optimizer." if scales else "."
        forwards, backwards = site_list(finding, "forward"), site_list(finding, "backward")
        drafts = Drafts(sources)
        framework = str(finding.parameters.get("framework") or "")
        framework = framework or next((f for site in forwards if (f := framework_used(drafts[site.file]))), "")
        framework = framework or ("" if forwards else framework_set_up(finding))
        if framework:
            text = _FRAMEWORKS[framework].format(short=_SHORT[dtype], long=_LONG[dtype])
        if finding.unmet:
            return Advice(text, " ".join(finding.unmet))
        single = (FLOAT32_ON_GPU if device == "cuda" else frozenset()) | _MAKES_FLOAT32
        for path in dict.fromkeys((*file_list(finding, "own"), *(site.file for site in forwards))):
            if not sources.editable(path):
                continue
            if why := overflowing_fill(drafts, drafts[path], dtype, single) or untold_function(drafts[path]):
                return Advice(text, why)
        if framework:
            if framework == "lightning" and finding.parameters.get("fused") and told(finding, "gradient_clip_val"):
                return Advice(text, "Lightning refuses to clip the gradients of a fused optimizer in 16 bits")
            settings, why = _settings(framework, dtype, device), f"{framework} runs the forward"
            return configured(finding, sources, framework, settings, text, why)
        if switched_off := site_list(finding, "switched_off"):
            text = f"Switch on the autocast {where(switched_off[0])}, with dtype=torch.{dtype}."
            return Advice(text, "the script's own is switched off")
        if not forwards:
            return Advice(text, "the place of the forward is unknown")
        why = wrap_forwards(drafts, forwards, backwards, device, dtype)
        if not why and dtype == "float16" and backwards:
            why = scale_loss(drafts, backwards, site_list(finding, "step"), site_list(finding, "optimizer"), device)
        if why:
            return Advice(text, why)
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
import torch

for x, y in loader:
    optimizer.zero_grad()
    # forward
    out = model(x)  # logits  # <- forward

    loss = criterion(
        out,
        y,
    )
    loss.backward()  # <- backward
    optimizer.step()
""",
            after="""
import torch

for x, y in loader:
    optimizer.zero_grad()
    # forward
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = model(x)  # logits

        loss = criterion(
            out,
            y,
        )
    loss.backward()
    optimizer.step()
""",
        ),
        Example(  # what stands between loss and backward stays outside
            before="""
import torch as th
import torch.nn.functional as F

class Trainer:
    def step(self, batch):
        loss = F.mse_loss(self.model(batch["x"]), batch["y"])  # <- forward
        self.optimizer.zero_grad()
        loss.backward()  # <- backward
""",
            after="""
import torch as th
import torch.nn.functional as F

class Trainer:
    def step(self, batch):
        with th.autocast("cpu", dtype=th.bfloat16):
            loss = F.mse_loss(self.model(batch["x"]), batch["y"])
        self.optimizer.zero_grad()
        loss.backward()
""",
            parameters={"device": "cpu"},
        ),
        Example(  # float16: the loss is scaled
            before="""
import torch

def main():
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)  # <- optimizer
    for x, y in loader:
        loss = criterion(model(x), y)  # <- forward
        optimizer.zero_grad()
        loss.backward()  # <- backward
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()  # <- step
        scheduler.step()
""",
            after="""
import torch

def main():
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
""",
            parameters={"dtype": "float16"},
        ),
        Example(  # an evaluation alone: its losses stay in float32
            before="""
import torch

total = 0.0
for x, y in loader:
    out = model(x)  # <- forward
    loss = criterion(out, y)
    total += loss.item()
    hits += (out.argmax(1) == y).sum()
""",
            after="""
import torch

total = 0.0
for x, y in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = model(x)
        loss = criterion(out, y)
    total += loss.item()
    hits += (out.argmax(1) == y).sum()
""",
        ),
        Example(  # a GAN: one region per backward
            before="""
import torch

for real, _ in loader:
    fake = G(z)  # <- forward
    g_loss = bce(D(fake), valid)  # <- forward
    g_loss.backward()  # <- backward
    opt_g.step()
    d_loss = bce(D(real), valid) + bce(D(fake.detach()), zeros)  # both  # <- forward
    opt_d.zero_grad()
    d_loss.backward()  # <- backward
    opt_d.step()
""",
            after="""
import torch

for real, _ in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        fake = G(z)
        g_loss = bce(D(fake), valid)
    g_loss.backward()
    opt_g.step()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        d_loss = bce(D(real), valid) + bce(D(fake.detach()), zeros)  # both
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()
""",
        ),
        Example(  # backward deeper than the forward
            before="""
import torch

for x, y in loader:
    with torch.set_grad_enabled(phase == "train"):
        out = model(x)  # <- forward
        loss = criterion(out, y)
        if phase == "train":
            loss.backward()  # <- backward
            optimizer.step()
""",
            after="""
import torch

for x, y in loader:
    with torch.set_grad_enabled(phase == "train"):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = model(x)
            loss = criterion(out, y)
        if phase == "train":
            loss.backward()
            optimizer.step()
""",
        ),
        Example(  # forward, loss and backward in one
            before="""
import torch

for x, y in loader:
    optimizer.zero_grad()
    # all at once
    criterion(model(x), y).backward()  # <- forward, backward
    optimizer.step()
""",
            after="""
import torch

for x, y in loader:
    optimizer.zero_grad()
    # all at once
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
""",
        ),
        Example(
            before="""
import lightning as L

class Net(L.LightningModule):
    def training_step(self, batch, index):
        return F.mse_loss(self.net(batch), batch)  # <- forward

L.Trainer(max_epochs=1, precision=32).fit(Net(), loader)  # <- config=L.Trainer(max_epochs=1, precision=32)
""",
            after="""
import lightning as L

class Net(L.LightningModule):
    def training_step(self, batch, index):
        return F.mse_loss(self.net(batch), batch)

L.Trainer(max_epochs=1, precision="bf16-mixed").fit(Net(), loader)
""",
        ),
        Example(
            before="""
parser.add_argument("--bf16", action="store_true")
cli = parser.parse_args()
args = TrainingArguments(bf16=cli.bf16, max_steps=9)  # <- config
""",
            after="",
            parameters={"framework": "transformers"},
            options={"--bf16": ""},
        ),
        Example(  # inference
            before="""
import torch

for x in images:
    scores = model(x)  # <- forward
    top = scores.argmax(1)
""",
            after="""
import torch

for x in images:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        scores = model(x)
    top = scores.argmax(1)
""",
        ),
        Example(  # what else becomes NumPy's is float32, or whole numbers
            before="""
import torch

for x, y in loader:
    out = model(x)  # <- forward=model(x)
    loss = criterion(out, y)
    loss.backward()  # <- backward
    labels.append(y.cpu().numpy())
    losses.append(loss.detach().cpu().numpy())
    _, predicted = torch.max(out, 1)
    found.append((predicted.cpu().numpy(), out.float().detach().cpu().numpy()))
    kept["out"], shown[:8] = out, out[:8]
""",
            after="""
import torch

for x, y in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = model(x)
        loss = criterion(out, y)
    loss.backward()
    labels.append(y.cpu().numpy())
    losses.append(loss.detach().cpu().numpy())
    _, predicted = torch.max(out, 1)
    found.append((predicted.cpu().numpy(), out.float().detach().cpu().numpy()))
    kept["out"], shown[:8] = out, out[:8]
""",
        ),
        *(  # it multiplies nothing, or is told of autocast
            Example(
                before=f"import torch\n\nclass Turn(torch.autograd.Function):\n    @staticmethod\n{forward}\n\n"
                "for x, y in loader:\n    loss = criterion(model(x), y)  # <- forward=model(x)\n"
                "    loss.backward()  # <- backward\n",
                after=f"import torch\n\nclass Turn(torch.autograd.Function):\n    @staticmethod\n{forward}\n\n"
                'for x, y in loader:\n    with torch.autocast("cpu", dtype=torch.bfloat16):\n'
                "        loss = criterion(model(x), y)\n    loss.backward()\n",
                parameters={"device": "cpu"},
            )
            for forward in (
                "    def forward(ctx, x):\n        return x.view_as(x)",
                '    @torch.amp.custom_fwd(device_type="cpu")\n    def forward(ctx, x, w):\n        return x @ w',
            )
        ),
    )
    LEAVES_ALONE = (
        *(  # what it multiplies in its forward is in 16 bits, and in its backward not
            Example(
                f"{imported}\n\nclass Cell({base}):\n    @staticmethod\n    def forward(ctx, x, w):\n"
                f"        ctx.save_for_backward(x, w)\n        return {product}\n\nfor x, y in loader:\n"
                "    loss = criterion(model(x), y)  # <- forward=model(x)\n    loss.backward()  # <- backward\n",
                "",
            )
            for imported, base, product in (
                ("import torch", "torch.autograd.Function", "torch.mm(x, w)"),
                ("from torch.autograd import Function", "Function", "x @ w.t()"),
                ("import torch.nn.functional as F\nfrom torch import autograd", "autograd.Function", "F.linear(x, w)"),
                ("import torch\n\ndef cell(x, w):\n    return x @ w", "torch.autograd.Function", "cell(x, w)"),
                ("from torch.autograd import Function\n\nclass Base(Function):\n    pass", "Base", "x.inner(w)"),
            )
        ),
        Example(  # an object that is called gives what becomes an array elsewhere
            """
class Scorer:
    def __call__(self, batch):
        return model(batch).log_softmax(-1)  # <- forward

class Tally:
    def update(self, scores):
        self.rows.append(scores.numpy())

tally = Tally()
scorer = Scorer()
for batch in loader:
    tally.update(scorer(batch))
""",
            "",
            {"device": "cpu"},
        ),
        Example(  # a running sum in 16 bits soon grows no more
            "import torch\nlevel = 0\nfor x in xs:\n    out = model(x)  # <- forward\n    level += out.mean()\n",
            "",
        ),
        Example("import torch\n(loss + model(x)).backward()  # <- forward, backward\n", ""),
        Example(
            "from lightning import Trainer\ndef training_step(x):\n    loss = f(model(x))  # <- forward\n",
            "",
        ),
        Example("import torch\nfor x in xs:\n    out = model(x)  # <- forward\n    save(out.numpy())\n", ""),
        Example("import torch\nloss = model(x)  # <- forward\n", "", {"framework": "lightning"}),
        Example(
            "import torch\ndef closure():\n    loss = model(x)  # <- forward\n    loss.backward()  # <- backward\n"
            "    return loss\noptimizer = LBFGS(ps)  # <- optimizer\noptimizer.step(closure)  # <- step\n",
            "",
            {"dtype": "float16"},
        ),
        Example(  # bfloat16 is no type of NumPy's
            """
import torch

for x, y in loader:
    out = model(x)  # <- forward=model(x)
    loss = criterion(out, y)
    loss.backward()  # <- backward
    optimizer.step()
    probs.append(torch.sigmoid(out).detach().cpu().numpy())
""",
            "",
        ),
        Example(
            """
import numpy as np
import torch

for x in images:
    scores = model(x)  # <- forward=model(x)
    found.append(np.asarray(scores.cpu()))
""",
            "",
        ),
        Example(  # a bank in float32
            """
import torch

for x, y, idx in loader:
    f = model(x)  # <- forward=model(x)
    loss = criterion(f @ bank.t(), y)
    loss.backward()  # <- backward
    optimizer.step()
    bank[idx] = f.detach()
""",
            "",
        ),
        Example(
            """
import torch

for x in images:
    features = model(x)  # <- forward=model(x)
    scores = features @ prototypes.T
""",
            "",
        ),
        Example(  # scores in float16 hold no -1e9
            """
import torch

class Attention(torch.nn.Module):
    def forward(self, q, k, v, mask):
        s = q @ k.transpose(-2, -1)
        s = s.masked_fill(mask == 0, -1e9)
        return s.softmax(-1) @ v

for x in xs:
    out = model(x)  # <- forward
""",
            "",
            {"dtype": "float16"},
        ),
        Example(  # the mode would stay on in what takes the values
            "import torch\ndef f(xs):\n    for x in xs:\n        yield model(x)  # <- forward=model(x)\n", ""
        ),
    )


# The numbers ------------------------------------------------------------------------------------------------------


def _switched_off(evidence: Evidence) -> tuple[CallSite, ...]:
    """Where each step enters an autocast that does nothing: ``enabled=args.amp``, and no ``--amp`` was given."""
    return tuple(each for each in call_sites(evidence, "autocast") if each.details.get("enabled") is False)


def _inside_framework(evidence: Evidence) -> bool:
    """Whether a framework has autocast on already: Accelerate and Trainer do inside the model's call, unseen there."""
    entered = any(each.details.get("enabled") for each in call_sites(evidence, "autocast"))
    return entered and bool(construction(evidence))


def _all_float32(record: RunRecord) -> bool:
    """Whether the models compute in float32 now: no autocast, no 16-bit or 64-bit parameters."""
    models = [model for model in record.models if model.parameters]
    return all(not model.autocast and set(model.dtypes) <= {"float32", "torch.float32"} for model in models)


def _on_gpu(evidence: Evidence) -> tuple[Change, dict[str, float | str | None], str] | None:
    single = single_precision(evidence)
    if single is None:
        return None
    casting = casting_s(evidence)
    if casting > _MOST_CASTING * single.per_step_s and not evidence.trains:
        return None
    figures: dict[str, float | str | None] = {
        "float32_matrix_share": single.share,
        "matrix_off_tensor_cores_share": single.off,
        "tensor_core_share_low": evidence.matrix.share_low,
        "tensor_core_share_high": evidence.matrix.share_high,
    }
    scales = evidence.trains and not has_bf16(evidence)
    scaling, on_host = scaling_s(evidence) if scales else (0.0, 0.0)
    on_host += casts_on_host_s(evidence)
    change = Change(kernel_scale=in_16_bits(evidence, single, casting + scaling), remove_host_s=-on_host)
    return change, figures, single.summary


def _unmet(evidence: Evidence) -> tuple[str, ...]:
    if evidence.device_is_gpu and any(row.name == "aten::binary_cross_entropy" for row in evidence.operators):
        return (
            "torch.nn.BCELoss raises under autocast on a GPU: let the model end without its sigmoid and use "
            "BCEWithLogitsLoss, then autocast.",
        )
    if evidence.device_is_gpu and multiplies_sparse((row.name for row in evidence.operators), ()):
        return (_SPARSE,)
    if evidence.record is not None or evidence.capability is not None or evidence.amd:
        return ()
    return ("The trace does not say which GPU it was: Tensor Cores came with compute capability 7.0.",)


def _on_cpu(evidence: Evidence) -> tuple[Change, dict[str, float | str | None], str] | None:
    flags = evidence.record.environment.cpu_flags if evidence.record is not None else []
    unit = next((flag for flag in _CPU_SCALE if flag in flags), None)
    rows = [row for row in evidence.operators if _CPU_MATRIX.match(row.name)]
    if unit is None or not rows or any(is_depthwise(shape) for row in rows for shape in row.shapes):
        return None
    if evidence.operators.row(_FAST_PATH) is not None:
        return None
    names, texts = (row.name for row in evidence.operators), map(text_of, model_files(evidence))
    if multiplies_sparse(names, texts) or _sensitive(evidence):
        return None
    calls = sum(row.count for row in rows)
    if not any(row.shapes for row in rows) and sum(row.self_s for row in rows) < _LEAST_S * calls:
        return None
    flops = evidence.flops
    if flops.per_step and flops.uncounted < 0.25 * calls and flops.per_step < _LEAST_FLOP * calls:
        return None
    if flops.per_step and flops.by_dtype.get("float32", 0.0) < _LEAST_SINGLE * flops.per_step:
        return None  # autocast leaves float64 as it is
    share = sum(row.share for row in rows)
    weights = sum(model.parameters for model in evidence.record.models) if evidence.record is not None else 0
    wide = _CPU_SCALE[unit]
    linear = linear_with_casts(evidence)
    weights_s = weights * _CAST_WEIGHT_S * (few_rows(evidence) if linear else 1.0)
    casts = sum(row.count for row in rows if row.name not in linear) * _CAST_S + weights_s
    scales = _scales(evidence, wide) | linear
    change = Change(operator_scale=scales, remove_host_s=-casts)
    figures: dict[str, float | str | None] = {"matrix_operator_share": share, "instructions": unit}
    return change, figures, f"{share:.0%} of the step is matrix operators in float32 on a CPU with {unit}."


def _scales(evidence: Evidence, wide: float) -> dict[str, float]:
    """What is left of each operator's time on a CPU, of most matrix operators `wide`."""
    models = evidence.record.models if evidence.record is not None else []
    nhwc = any(model.channels_last for model in models)
    scales = linear_on_cpu(evidence, wide)
    for row in evidence.operators:
        if "scaled_dot_product" in row.name:
            backward = row.name.endswith("backward")
            if is_amd(evidence):
                scales[row.name] = _amd_backward(evidence, row, wide) if backward else _AMD_ATTENTION
            else:
                scales[row.name] = _attention_backward(row.shapes) if backward else _ATTENTION
        elif "conv" in row.name and _CPU_MATRIX.match(row.name):
            scales[row.name] = _scale(row.shapes, max(wide, _NHWC_CONVOLUTION) if nhwc else wide)
        elif _CPU_MATRIX.match(row.name):
            scales.setdefault(row.name, wide)
        elif nhwc and evidence.trains:
            norms = (
                scale for name, scale in _NHWC_NORMS.items() if re.search(rf"native_{name}(_backward)?$", row.name)
            )
            scales.update((row.name, scale) for scale in norms)
    return no_faster(evidence, scales)


def _attention_backward(shapes: tuple[str, ...]) -> float:
    """What is left of the time of attention's backward, by its tokens: the third number of the first shape."""
    tokens = [int(found[1]) for shape in shapes if (found := _TOKENS.match(shape)) is not None]
    each = [_ATTENTION_BACKWARD if count >= _MANY_TOKENS else _ATTENTION_BACKWARD_SHORT for count in tokens]
    return sum(each) / len(each) if each else _ATTENTION_BACKWARD


def _amd_backward(evidence: Evidence, row: OperatorRow, wide: float) -> float:
    """The same on AMD's processors, by all tokens of all heads, beside products of which `wide` is left."""
    tokens = [math.prod(map(int, found.groups())) for each in row.shapes if (found := _HEADS_TOKENS.match(each))]
    if not tokens or not row.count or not row.self_s or evidence.record is None:
        return _ATTENTION_BACKWARD_SHORT
    threads = min(_AMD_THREADS, max(1, evidence.record.environment.intraop_threads))
    each_s = _AMD_TOKEN_CORE_S / threads * sum(tokens) / len(tokens)
    return wide + each_s * row.count / row.self_s


def _sensitive(evidence: Evidence) -> bool:
    """Whether rounding decides how much is computed, or is itself differentiated."""
    texts = [text_of(path) for path in model_files(evidence)]
    return any(_ADAPTS.search(text) or differentiates_twice(text) for text in texts)


def _scale(shapes: tuple[str, ...], wide: float) -> float:
    """What is left of the time of convolutions with inputs of these shapes: narrow ones gain nothing."""
    narrow = sum(map(is_narrow, shapes))
    return (narrow + (len(shapes) - narrow) * wide) / len(shapes) if shapes else wide


def _settings(framework: str, dtype: str, device: str) -> dict[str, str]:
    """What the framework has to be told, the code of each value by its name."""
    if framework == "lightning":
        return {"precision": f'"{_LONG[dtype]}-mixed"'}
    if framework == "accelerate":
        return {"mixed_precision": f'"{_SHORT[dtype]}"'}
    # On a CPU, transformers takes bf16 only from who says that a CPU is meant.
    return {_SHORT[dtype]: "True"} | ({"use_cpu": "True"} if device == "cpu" else {})


def _framework(record: RunRecord | None) -> str:
    owners = [framework_of(each.owner) for each in record.optimizers] if record is not None else []
    return next((owner for owner in owners if owner), "")
