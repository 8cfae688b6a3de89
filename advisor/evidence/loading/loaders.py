"""Loaders that feed the steps: how long the step waits for them, and what a batch costs to make."""

from __future__ import annotations

import numpy as np

from advisor.evidence.facts import LoaderFacts, Steps
from advisor.evidence.host import Host
from advisor.harness.layout import Loader, RunRecord


def loader_facts(
    record: RunRecord | None, steps: Steps, host: Host, step_s: float | None, exposed: float
) -> tuple[LoaderFacts, ...]:
    """From the record where there is one, else from the trace. `exposed`: share of the step in which all waits."""
    if record is not None and record.loaders:
        return _recorded(record, step_s, exposed)
    return _traced(steps, host, step_s, exposed)


def _recorded(record: RunRecord, step_s: float | None, exposed: float) -> tuple[LoaderFacts, ...]:
    feeding = [(i, loader) for i, loader in enumerate(record.loaders) if _feeds(loader)]
    total = sum(loader.wait_s or 0.0 for _, loader in feeding)
    facts = []
    for index, loader in feeding:
        wait = loader.wait_s or 0.0
        facts.append(
            LoaderFacts(
                record=loader,
                index=index,
                workers=loader.num_workers,
                wait_s=wait,
                wait_share=min(1.0, wait / step_s) if step_s else 0.0,
                exposed_share=exposed * wait / total if total > 0 else 0.0,
                fetch_s=loader.fetch_s if loader.fetch_s is not None or loader.num_workers else loader.wait_s,
                fetch_cpu_s=_single_cpu_s(loader),
                single_s=_single_s(loader),
                start_s=loader.start_s,
                batches=loader.batches,
                site=loader.site,
            )
        )
    return tuple(sorted(facts, key=lambda fact: -fact.wait_s))


def _single_s(loader: Loader) -> float | None:
    """Seconds to make a batch on one thread: no longer than all threads together compute, and wait, for one later.

    The fetch that was timed may have been among the first, which open files and fill caches.
    """
    if loader.single_s is None or loader.num_workers or loader.fetch_s is None or loader.fetch_cpu_s is None:
        return None if loader.num_workers else loader.single_s
    return min(loader.single_s, loader.fetch_s + loader.fetch_cpu_s)


def _single_cpu_s(loader: Loader) -> float | None:
    """CPU seconds to make a batch on one thread: idle threads of OpenMP's spin, and count as if they computed."""
    if loader.fetch_cpu_s is None or loader.single_cpu_s is None or loader.num_workers:
        return loader.fetch_cpu_s
    return min(loader.fetch_cpu_s, loader.single_cpu_s)


def _feeds(loader: Loader) -> bool:
    return loader.trains or loader.wait_s is not None


def _traced(steps: Steps, host: Host, step_s: float | None, exposed: float) -> tuple[LoaderFacts, ...]:
    if not len(steps) or not len(host.loader):
        return ()
    annotations = host.trace.annotations
    names = {host.trace.name(int(code)) for code in np.unique(annotations.name[host.loader_rows])}
    waited = float(host.loader.within(steps.start, steps.end).sum()) / 1e9 / len(steps)
    share = waited / step_s if step_s else 0.0
    single = any("_SingleProcess" in name for name in names) and not any("_MultiProcess" in name for name in names)
    fact = LoaderFacts(
        record=None,
        index=-1,
        workers=0 if single else None,
        wait_s=waited,
        wait_share=min(1.0, share),
        exposed_share=exposed,
        fetch_s=waited if single else None,
        fetch_cpu_s=None,
        single_s=None,
        start_s=None,
        batches=None,
        site=None,
    )
    return (fact,)
