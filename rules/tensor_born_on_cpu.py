"""Tensors are made on the CPU in every step and then copied to the GPU, which could have made them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from advisor.edit import Drafts, Sources
from advisor.edit.born import born, born_at, make_there
from advisor.edit.called import calls_in
from advisor.edit.locate import call_at
from advisor.evidence import Change
from advisor.evidence.gpu.births import MAKERS, births, births_anywhere
from advisor.fixes import edited
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at, call_sites, once_fed, site_list

if TYPE_CHECKING:
    from advisor.edit import Edit
    from advisor.edit.born import Born
    from advisor.evidence import Evidence
    from advisor.harness.layout import CallSite, Site

# What is left of a copy's time for the device to make the tensor: its memory is written at least ten times as fast as
# the bus brings it (PCIe 3.0 x16: 12 GB/s; GDDR5 of a GTX 1050 Ti: 112 GB/s, by NVIDIA's data sheet).
_MADE_THERE = 0.1


class TensorBornOnCpu(Rule):
    """In every step a tensor is made on the CPU and copied to the GPU, which could have made it where it is needed.

    ``torch.zeros(n).cuda()`` fills memory on the CPU, copies it over the bus, and waits until everything launched
    before and the copy itself have finished; random numbers take the CPU longest. ``torch.zeros(n, device="cuda")`` is
    one launch that nobody waits for. A mask that is the same in each step is best made once, before the loop.

    When not: random numbers must be those of the CPU's generator (a published seed); the tensor is filled element by
    element in Python before it is copied.

    Source: PyTorch performance tuning guide, "Create tensors directly on the target device" and "Avoid unnecessary
    CPU-GPU synchronization".
    """

    id = "tensor-born-on-cpu"
    title = "Make tensors on the GPU, not on the CPU to copy them"
    safety = Safety.EXACT

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if not evidence.device_is_gpu or not evidence.breakdown.on_device:
            return
        drafts = Drafts(Sources())
        if evidence.record is None:
            made = _in_source(drafts, evidence.source)
            names = frozenset(f"aten::{origin.name}" for _, origin in made) if evidence.source else MAKERS
            found = births_anywhere(evidence.steps, evidence.device, evidence.nesting, names)
        else:
            moves = tuple(each for each in call_sites(evidence, "Tensor.to", "Tensor.cuda") if _goes_up(each))
            recorded = [(each, origin) for each in moves if (origin := born_at(drafts, each.site)) is not None]
            sizes = _sizes(moves, recorded)
            made = [(each.site, origin) for each, origin in recorded if each.details.get("bytes") in sizes]
            found = births(evidence.steps, evidence.device, evidence.nesting, sizes)
        if len(found.rows) < len(evidence.steps):
            return
        host_s = found.made_s / evidence.inflation
        left = np.ones(len(evidence.trace.copies))
        left[found.rows] = _MADE_THERE
        # A launch stays, of the kernel that makes the tensor where it is needed, and what that takes.
        change = Change(copies_async=found.rows, h2d_scale=left, remove_host_s=host_s)
        estimate, said = once_fed(evidence, change)
        gain = Gain.of(estimate)
        if not gain.worth_it:
            return
        places = tuple(site for site, _ in made)
        draws = any(origin.random for _, origin in made)
        copies = evidence.trace.copies
        copied_s = float((copies.end - copies.start)[found.rows].sum(dtype="float64")) / 1e9 / len(evidence.steps)
        where = f", at {', '.join(dict.fromkeys(map(at, places)))}" if places else ""
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"Each step makes {len(found.rows) / len(evidence.steps):.0f} tensor(s) on the CPU and copies "
            f"them to the GPU{where}: {host_s * 1e3:.2f} ms to make them, {copied_s * 1e3:.2f} ms to copy them, and "
            f"each time a wait for the GPU.{said}",
            gain=gain,
            evidence={
                "copies_per_step": len(found.rows) / len(evidence.steps),
                "made_s": host_s,
                "copied_s": copied_s,
                "step_s": evidence.step_s,
            },
            site=places[0] if places else None,
            parameters={"moves": places},
            safety=Safety.BEHAVIOUR if draws else None,
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Advice:
        found = site_list(finding, "moves")
        where = ", ".join(dict.fromkeys(at(site) for site in found)) or "your script"
        text = f"Make the tensors of {where} on the GPU: pass the factory device=, and drop the copy."
        if not found:
            return Advice(text, "the places are unknown")
        drafts = Drafts(sources)
        for site in found:
            draft = drafts[site.file]
            move = call_at(draft, site, ("to", "cuda"))
            made = born(draft, move) if move is not None else None
            if move is None or made is None or not make_there(draft, move, made):
                return Advice(text, f"what the copy at {at(site)} does besides cannot be told from the source")
        return edited(drafts, text, f"Make the tensors of {where} on the GPU.")

    EXAMPLES = (
        Example(
            before="""
import torch

for x, y in loader:
    noise = torch.randn(x.size(0), latent).to(device)  # for G  # <- moves
    mask = torch.triu(torch.ones(n, n), 1).bool().cuda()  # <- moves=torch.triu(torch.ones(n, n), 1).bool().cuda()
    loss = step(x, noise, mask)
""",
            after="""
import torch

for x, y in loader:
    noise = torch.randn(x.size(0), latent, device=device)  # for G
    mask = torch.triu(torch.ones(n, n, device="cuda"), 1).bool()
    loss = step(x, noise, mask)
""",
        ),
        Example(
            before="""
import torch

def forward(self, x):
    positions = torch.arange(x.size(1)).unsqueeze(0)
    positions = positions.to(x.device)  # <- moves
    return self.embed(x) + self.position(positions)
""",
            after="""
import torch

def forward(self, x):
    positions = torch.arange(x.size(1), device=x.device).unsqueeze(0)
    return self.embed(x) + self.position(positions)
""",
        ),
        Example(
            before="import torch\nkeep = (torch.rand(n) < 0.9).float().cuda()  # <- moves\n",
            after='import torch\nkeep = (torch.rand(n, device="cuda") < 0.9).float()\n',
        ),
        Example(  # the type stays to be changed, on the GPU
            before="import torch as th\nt = th.zeros(\n    n,\n    k,\n).to(device, th.float16)  # <- moves\n",
            after="import torch as th\nt = th.zeros(\n    n,\n    k,\n    device=device,\n).to(device, th.float16)\n",
        ),
    )
    LEAVES_ALONE = (
        Example(  # used on the CPU as well
            "import torch\nfor x in xs:\n    z = torch.randn(8)\n    g(z.to(device))  # <- moves\n    log(z.numpy())\n",
            "",
        ),
        Example("import torch\nz = torch.zeros(3)\nh = g(z, z.cuda())  # <- moves\n", ""),
        Example(
            "import torch\ndef f(x):\n    p = torch.arange(9)\n    q = p.to(x.device)  # <- moves\n    return q, p\n",
            "",
        ),
        Example(
            "import torch\n"
            "x = torch.ones(3).add(torch.rand(3)).cuda()  # <- moves=torch.ones(3).add(torch.rand(3)).cuda()\n",
            "",
        ),
        Example("import torch\nx = torch.zeros(3).add(-offset).to(device)  # <- moves\n", ""),
        Example("import torch\nx = torch.ones(3).mul(offsets[i]).to(device)  # <- moves\n", ""),
        Example("import torch\nx = torch.zeros(3).to(other)  # <- moves\n", ""),
        Example("import torch\nx = (torch.rand(n) < rates).cuda()  # <- moves\n", ""),
        Example("import torch\nx = torch.tensor(values).cuda()  # <- moves\n", ""),
        Example("import torch\nm = torch.zeros(n, k)\nm[0] = 1\nm = m.cuda()  # <- moves\n", ""),
        Example("import torch\ne = torch.eye(10)[labels].cuda()  # <- moves\n", ""),
        Example("import torch\nr = torch.rand(3, generator=g).to(device)  # <- moves\n", ""),
        Example("import torch\np = torch.arange(n)\ndevice = x.device\np = p.to(device)  # <- moves\n", ""),
        Example("import torch\nz = torch.zeros(3).add(offset).cuda()  # <- moves\n", ""),
        Example("import torch\nz = torch.zeros(3).cuda(args.gpu)  # <- moves\n", ""),
    )


def _goes_up(place: CallSite) -> bool:
    return place.details.get("from_device") == "cpu" and place.details.get("to_device") == "cuda"


def _sizes(moves: tuple[CallSite, ...], made: list[tuple[CallSite, Born]]) -> dict[int, tuple[float, frozenset[str]]]:
    """Bytes → (copies per step, operators that make them), of sizes that no other copy has."""
    sizes: dict[int, tuple[float, frozenset[str]]] = {}
    for each, origin in made:
        size = int(each.details.get("bytes", 0))
        count, makers = sizes.get(size, (0.0, frozenset()))
        sizes[size] = (count + each.calls_per_step, makers | {f"aten::{origin.name}"})
    ours = {id(each) for each, _ in made}
    for each in moves:  # a batch of the same size: which copies are whose cannot be told
        if id(each) not in ours:
            sizes.pop(int(each.details.get("bytes", 0)), None)
    return sizes


def _in_source(drafts: Drafts, path: str) -> list[tuple[Site, Born]]:
    """Where a script moves what it has just made, inside a loop or a function."""
    moves = calls_in(drafts.sources, path, ("to", "cuda")) if path else ()
    return [(site, origin) for site in moves if (origin := born_at(drafts, site)) is not None]
