"""Matrix work runs in a 16-bit type in which the processor is slower than in float32."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Drafts
from advisor.edit.locate import call_at
from advisor.edit.origins.values import EDITED, give
from advisor.edit.sources import text_of
from advisor.evidence import Change
from advisor.evidence.halves import rate_on_cpu
from advisor.evidence.precisions import casting_shares, in_float32, typed_shares
from advisor.fixes import edited
from advisor.harness.layout import Site
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, at, call_sites, site_list, sites, where
from advisor.shared.frameworks import configured, construction, framework_set_up

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import CallSite

# Each type with what the profiler calls it, and the processor flags any of which stands for its instructions. The
# flags decide only in runs that did not measure the types' rates; of AVX-512 alone, with which oneDNN computes in both
# types through float32, nothing is said then.
_TYPES = {
    "bfloat16": ("c10::BFloat16", ("avx512_bf16", "amx_bf16", "avx_ne_convert")),
    "float16": ("c10::Half", ("avx512_fp16", "amx_fp16", "avx_ne_convert")),
}
_KNOWN, _THROUGH_FLOAT32 = "avx2", "avx512f"
_LEAST_SHARE = 0.3  # of the matrix work's FLOPs

# Seconds in float32 over the same in bfloat16 or float16, measured with torch 2.15 on one thread of an AVX2 machine:
# products of 64x64 to 512x512 1/18 to 1/68, linear layers with a bias 1/8 to 1/13, convolutions 1/12 to 1/36, fused
# attention 1/1.6 to 1/3; elementwise operators and reductions 1/4.6 to 1.
_SCALE = {
    "aten::mm": 1 / 45,
    "aten::bmm": 1 / 45,
    "aten::baddbmm": 1 / 45,
    "aten::addmm": 1 / 10,
    "aten::mkldnn_convolution": 1 / 20,
    "aten::_slow_conv2d_forward": 1 / 20,
    "aten::convolution_backward": 1 / 10,
}
_ATTENTION, _OTHERS = 0.5, 0.7
# Times as long in 16 bits as in float32, measured by the run: from the first on it is said, from the second on the
# processor emulates, and the factors above hold. A Xeon whose hypervisor hides AMX takes 1.9 for both; oneDNN with
# AVX-512 alone 4 to 5.5 for bfloat16.
_SLOWER, _EMULATES = 1.25, 10.0

_FRAMEWORKS = {
    "transformers": ("Leave out bf16=True (fp16=True) of TrainingArguments.", {}),
    "lightning": ('Pass Trainer(precision="32-true").', {"precision": '"32-true"'}),
    "accelerate": ('Pass Accelerator(mixed_precision="no").', {"mixed_precision": '"no"'}),
}


class EmulatedPrecision(Rule):
    """Matrix products run in bfloat16 or float16 on a processor that is slower in them than in float32.

    Autocast and 16-bit weights pay where there are fast instructions for them: Tensor Cores on a GPU, AMX or
    AVX512_BF16 on an x86 processor. Without any each product is computed by a loop that converts value by value, ten to
    sixty times slower than float32's; and those of AVX512_BF16 take twice as long as float32's on a Xeon whose AMX the
    hypervisor hides. Nothing warns of it; a script that was written for a GPU or a server simply takes an hour for a
    minute on a laptop. Found by the types of the matrix operators' inputs in the trace, and by how long a product and a
    convolution took this processor in each type, which every run on a CPU measures.

    When not: the run on this machine is only a rehearsal for one that has the instructions, and the results must be
    those of the 16-bit type.

    Source: oneDNN, "Data types" (which instruction sets compute in bf16 and f16); by how much is measured.
    """

    id = "emulated-precision"
    title = "Compute in float32, in which this processor is faster"
    safety = Safety.NUMERIC
    of_operators = True
    conflicts = ("amp-autocast", "half-inference")

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        total = evidence.flops.per_step
        if record is None or evidence.device_is_gpu or not total:
            return
        emulated = [dtype for dtype in _TYPES if _is_slow(evidence, dtype)]
        share = sum(evidence.flops.by_dtype.get(dtype, 0.0) for dtype in emulated) / total
        if share < _LEAST_SHARE:
            return
        dtype = max(emulated, key=lambda each: evidence.flops.by_dtype.get(each, 0.0))
        rate = rate_on_cpu(evidence, "aten::mm", dtype)
        shares = typed_shares(evidence, *(_TYPES[each][0] for each in emulated))
        factors = in_float32(evidence, shares, lambda name: _left(evidence, name, dtype))
        casts = casting_shares(evidence, *(_TYPES[each][0] for each in emulated))
        factors |= {name: min(1.0 - share, factors.get(name, 1.0)) for name, share in casts.items()}
        gain = Gain.of(evidence.what_if(Change(operator_scale=factors)))
        if not gain.worth_it:
            return
        set_up = construction(evidence)
        regions = _regions(evidence, emulated)
        # A framework enters its own inside the model's call, which is what the script has at that line.
        regions = tuple(each for each in regions if not set_up or _enters(each.site))
        config = set_up.get("config")
        site = regions[0].site if regions else config[0] if isinstance(config, tuple) else None
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{share:.0%} of the matrix work of each step is in {dtype}, "
            + _how_slow(rate, record.environment.cpu or "unknown"),
            gain=gain,
            evidence={
                "emulated_share_of_flops": share,
                "dtype": dtype,
                "time_over_float32": rate,
                "step_s": evidence.step_s,
            },
            site=site,
            parameters={
                "regions": sites(regions),
                "dtype": dtype,
                "weights": any({*model.dtypes} & {*emulated} for model in record.models),
                **set_up,
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        dtype = str(finding.parameters.get("dtype", "bfloat16"))
        text = f"Have this machine compute in float32, {where(finding.site)}: autocast with enabled=False."
        regions = site_list(finding, "regions")
        framework = framework_set_up(finding)
        if framework and not regions:
            text, settings = _FRAMEWORKS[framework]
            settings = settings or {"bf16" if dtype == "bfloat16" else "fp16": "False"}
            return configured(finding, sources, framework, settings, text, f"{framework} runs the forward")
        if finding.parameters.get("weights"):
            text = f"Keep the weights in float32 on this machine: no .to(torch.{dtype}), and none for the inputs."
            return Advice(text, "weights, inputs and whatever is made in between have to change together")
        if not regions:
            return Advice(text, "where the type is chosen was not seen")
        drafts = Drafts(sources)
        for site in regions:
            draft = drafts[site.file]
            # What CPython 3.11 says of where a context is entered is the extent of the whole statement.
            call = call_at(draft, Site(site.file, site.line), ("autocast",))
            parameters = ("device_type", "dtype", "enabled")
            given = give(drafts, draft, call, "enabled", "False", parameters, True) if call is not None else None
            if given is None:
                return Advice(text, f"the autocast at {at(site)} cannot be told from the source")
            if given != EDITED:
                return Advice(text, f"the command line's {given} decides it")
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
for x, y in loader:
    with torch.autocast("cpu", dtype=torch.bfloat16):  # as on the cluster  # <- regions
        loss = criterion(model(x), y)
    loss.backward()
""",
            after="""
for x, y in loader:
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):  # as on the cluster
        loss = criterion(model(x), y)
    loss.backward()
""",
        ),
        Example(
            before="USE_AMP = True\nwith autocast('cpu', enabled=USE_AMP):  # <- regions\n    y = model(x)\n",
            after="USE_AMP = False\nwith autocast('cpu', enabled=USE_AMP):\n    y = model(x)\n",
        ),
        Example(
            before='accelerator = Accelerator(mixed_precision="bf16")  # <- config\nout = model(x)\n',
            after='accelerator = Accelerator(mixed_precision="no")\nout = model(x)\n',
            parameters={"config_kind": "Accelerator"},
        ),
        Example(
            before='trainer = L.Trainer(precision="bf16-mixed", max_epochs=3)  # <- config\n',
            after='trainer = L.Trainer(precision="32-true", max_epochs=3)\n',
            parameters={"config_kind": "Trainer"},
        ),
    )
    LEAVES_ALONE = (
        Example("with context:  # <- regions\n    y = model(x)\n", ""),
        Example("model = Net().to(torch.bfloat16)\ny = model(x)\n", "", {"weights": True}),
    )


def _is_slow(evidence: Evidence, dtype: str) -> bool:
    """Whether this processor was measured to be slower in this type; else whether it has no instructions for it."""
    if (rate := rate_on_cpu(evidence, "aten::mm", dtype)) is not None:
        return max(rate, rate_on_cpu(evidence, "aten::convolution", dtype) or rate) >= _SLOWER
    flags = set(evidence.record.environment.cpu_flags) if evidence.record is not None else set()
    return _KNOWN in flags and _THROUGH_FLOAT32 not in flags and not flags & {*_TYPES[dtype][1]}


def _how_slow(rate: float | None, cpu: str) -> str:
    if rate is None or rate >= _EMULATES:
        return f"for which this processor ({cpu}) has no instructions: it is emulated, ten times slower or more."
    return f"in which products take this processor ({cpu}) {rate:.1f} times as long as in float32."


def _regions(evidence: Evidence, emulated: list[str]) -> tuple[CallSite, ...]:
    """Where autocast is entered with one of these types: in each step, else around many of them."""

    def entered(every_step: bool) -> tuple[CallSite, ...]:
        told = ((each, each.details) for each in call_sites(evidence, "autocast", every_step=every_step))
        on = ((each, details) for each, details in told if details.get("device") == "cpu" and details.get("enabled"))
        return tuple(each for each, details in on if details.get("dtype") in emulated)

    return entered(True) or entered(False)


def _enters(site: Site) -> bool:
    """Whether a context is entered in this line's own words."""
    (line,) = text_of(site.file).splitlines()[site.line - 1 : site.line] or [""]
    return bool(re.search(r"\bwith\b|autocast", line))


def _left(evidence: Evidence, name: str, dtype: str) -> float:
    """What is left of an operator's time in float32."""
    rate = rate_on_cpu(evidence, name, dtype)
    if rate is not None and rate < _EMULATES:
        return min(1.0, 1 / rate) if name in _SCALE or "attention" in name else 1.0
    return _ATTENTION if "attention" in name else _SCALE.get(name, _OTHERS)
