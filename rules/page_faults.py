"""Each step gets its memory anew from the kernel, page by page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit.sources import text_of
from advisor.evidence import Change
from advisor.evidence.outside import own_files
from advisor.fixes import sets_variable
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, Variable

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import RunRecord

# Blocks of any size come from the heap, and the heap is never made smaller (64 GiB of it may be free).
_VARIABLES = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(64 << 30)}
# What tells malloc something already, or takes its place.
_TOLD = re.compile(r"^MALLOC_\w+_$|^GLIBC_TUNABLES$")
_MAPS = re.compile(r"mmap")
_OTHERS = re.compile(r"malloc|hoard|snmalloc", re.IGNORECASE)
_LEAST_PAGES = 100  # in a step
# Of the time that the kernel took, the steps were shorter by so much without: 0.94 to 1.49 in eight trainings of
# convolutions, an encoder, linear layers, an LSTM, a large vocabulary and pairs, each twice; the median was 1.1, for
# what stays in the caches is faster, too.
_SAVED = 1.08
_MOST = 0.9  # of a step
_MOST_MEMORY = 0.4  # of the host's, that the process may have held: the heap kept up to 1.6 times as much


class PageFaults(Rule):
    """Memory that a step frees goes back to the kernel, and the next step gets it again page by page.

    glibc's ``malloc``, which PyTorch allocates a CPU's tensors with, gives blocks over 32 MB back as soon as they are
    freed, and the rest whenever the end of its heap is free: after each backward, say. The next step touches new pages,
    and for each the kernel stops the thread, finds a page and fills it with zeros. ``MALLOC_MMAP_MAX_=0`` and a large
    ``MALLOC_TRIM_THRESHOLD_`` in the script's environment make it keep what it has: the same numbers to the last bit,
    in 0.2 to 0.8 of the time in eight small trainings. The time of the steps' thread in the kernel is measured in the
    undisturbed steps, and reported as far as the memory that operators allocate accounts for it.

    When not: memory is short, or shared with other programs, for what was needed once stays with the process: up to 1.6
    times as much was seen. Not reported where something in the environment tells malloc what to do, or replaces it
    (jemalloc and tcmalloc, by ``LD_PRELOAD``, keep memory by themselves), and only with glibc.

    Source: PyTorch performance tuning guide, "Switch Memory allocator"; mallopt(3), ``M_MMAP_MAX``,
    ``M_TRIM_THRESHOLD`` and ``M_MMAP_THRESHOLD``; getrusage(2).
    """

    id = "page-faults"
    title = "Keep the memory that each step frees"
    safety = Safety.EXACT
    of_operators = True

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record, found = evidence.record, evidence.fresh_memory
        if record is None or found is None or evidence.device_is_gpu or not record.environment.glibc:
            return
        if found.pages < _LEAST_PAGES or _is_told(record) or not evidence.step_s or _short_of_memory(evidence):
            return
        if any(_MAPS.search(text_of(file)) for file in own_files(record)):
            return  # a file that is mapped anew for each sample has faults that are none of malloc's
        saved = min(_SAVED * found.seconds, _MOST * evidence.step_s)
        gain = Gain.of(evidence.what_if(Change(remove_host_s=saved)))
        if not gain.worth_it:
            return
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"In each step the kernel maps {found.pages:,.0f} pages of memory that was given back before, and "
            f"takes {found.seconds * 1e3:.3g} ms of it.",
            gain=gain,
            evidence={
                "page_faults": found.pages,
                "system_s": found.seconds,
                "mapped_bytes": found.bytes,
                "step_s": evidence.step_s,
            },
            parameters={"variable": not any(sets_variable(record, name) for name in _VARIABLES)},
        )

    def fix(self, finding: Finding, sources: Sources) -> Variable | Advice:
        if finding.parameters.get("variable"):
            return Variable(_VARIABLES)
        given = " ".join(f"{name}={value}" for name, value in _VARIABLES.items())
        return Advice(
            f"Start the script with {given} in its environment: malloc reads them when a process begins.",
            "the script names one of these variables itself",
        )

    EXAMPLES = (Example("loss.backward()  # <-\n", "", {"variable": False}, advice="MALLOC_MMAP_MAX_=0"),)
    LEAVES_ALONE = (Example("loss.backward()\n", "", {"variable": True}),)


def _is_told(record: RunRecord) -> bool:
    """Whether another allocator serves the process, or this one was told something."""
    variables = record.environment.variables
    return any(_TOLD.match(name) for name in variables) or bool(_OTHERS.search(variables.get("LD_PRELOAD", "")))


def _short_of_memory(evidence: Evidence) -> bool:
    share = evidence.memory.share
    return share is not None and share > _MOST_MEMORY
