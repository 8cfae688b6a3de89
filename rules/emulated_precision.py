"""Matrix work runs in a 16-bit type that the processor has no instructions for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Drafts
from advisor.edit.locate import call_at
from advisor.edit.values import EDITED, give
from advisor.evidence import Change
from advisor.evidence.precisions import in_float32, typed_shares
from advisor.frameworks import configured, construction, framework_set_up
from advisor.harness.layout import Site
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, at, call_sites, site_list, sites, where

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import CallSite, RunRecord

# Each type with what the profiler calls it, and the processor flags any of which stands for its instructions. With
# AVX-512 alone oneDNN computes in both types through float32, at what cost was not measured: nothing is said of it.
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

_FRAMEWORKS = {
    "transformers": ("Leave out bf16=True (fp16=True) of TrainingArguments.", {}),
    "lightning": ('Pass Trainer(precision="32-true").', {"precision": '"32-true"'}),
    "accelerate": ('Pass Accelerator(mixed_precision="no").', {"mixed_precision": '"no"'}),
}


class EmulatedPrecision(Rule):
    """Matrix products run in bfloat16 or float16 on a processor that can only emulate them.

    Autocast and 16-bit weights pay where there are instructions for them: Tensor Cores on a GPU, AVX512_BF16, AMX or
    AVX-NE-CONVERT on an x86 processor. Without one of these each product is computed by a loop that converts value by
    value, ten to sixty times slower than float32's. Nothing warns of it; a script that was written for a GPU or a
    server simply takes an hour for a minute on a laptop. Found by the types of the matrix operators' inputs in the
    trace, and the processor's flags.

    When not: the run on this machine is only a rehearsal for one that has the instructions, and the results must be
    those of the 16-bit type.

    Source: oneDNN, "Data types" (which instruction sets compute in bf16 and f16); by how much is measured.
    """

    id = "emulated-precision"
    title = "Compute in float32, which this processor does not emulate"
    safety = Safety.NUMERIC
    conflicts = ("amp-autocast", "half-inference")

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        total = evidence.flops.per_step
        if record is None or evidence.device_is_gpu or not total:
            return
        emulated = _emulated(record)
        share = sum(evidence.flops.by_dtype.get(dtype, 0.0) for dtype in emulated) / total
        if share < _LEAST_SHARE:
            return
        dtype = max(emulated, key=lambda each: evidence.flops.by_dtype.get(each, 0.0))
        shares = typed_shares(evidence, *(_TYPES[each][0] for each in emulated))
        factors = in_float32(evidence, shares, _left)
        gain = Gain.of(evidence.what_if(Change(operator_scale=factors)))
        if not gain.worth_it:
            return
        regions = _regions(evidence, emulated)
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{share:.0%} of the matrix work of each step is in {dtype}, for which this processor "
            f"({record.environment.cpu or 'unknown'}) has no instructions: it is emulated, ten times slower or more.",
            gain=gain,
            evidence={"emulated_share_of_flops": share, "dtype": dtype, "step_s": evidence.step_s},
            site=regions[0].site if regions else None,
            parameters={
                "regions": sites(regions),
                "dtype": dtype,
                "weights": any({*model.dtypes} & {*emulated} for model in record.models),
                **construction(evidence),
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
        return drafts.edit(text) or Advice(text, "the file is not the script's own")

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


def _emulated(record: RunRecord) -> list[str]:
    """The types that this processor has no instructions for, as far as is known of it."""
    flags = set(record.environment.cpu_flags)
    if _KNOWN not in flags or _THROUGH_FLOAT32 in flags:
        return []
    return [dtype for dtype, (_, units) in _TYPES.items() if not flags & {*units}]


def _regions(evidence: Evidence, emulated: list[str]) -> tuple[CallSite, ...]:
    """Where autocast is entered with one of these types, in each step."""
    return tuple(
        each
        for each in call_sites(evidence, "autocast")
        if each.details.get("device") == "cpu" and each.details.get("enabled") and each.details.get("dtype") in emulated
    )


def _left(name: str) -> float:
    return _ATTENTION if "attention" in name else _SCALE.get(name, _OTHERS)
