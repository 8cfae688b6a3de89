"""What bounds the step, in one word and in one sentence."""

from __future__ import annotations

from advisor.evidence import facts
from advisor.evidence.facts import LoaderFacts, MatrixWork

# A class of time that takes less than this share of the step does not bound it: removing all of it would gain at most a
# quarter (1 / (1 - 0.2) = 1.25).
BOUND_SHARE = 0.2

_HOST_CLASSES = (facts.IDLE_LAUNCH, facts.IDLE_OPERATORS, facts.IDLE_PYTHON)


def bound_of(shares: dict[str, float], on_device: bool, data_wait_share: float | None) -> str:
    """input | device | host | sync | copy | communication | compute (a CPU step) | unknown."""
    if not shares:
        return "input" if (data_wait_share or 0.0) >= BOUND_SHARE else "unknown"
    if not on_device:
        waiting = shares[facts.LOADER] if data_wait_share is None else data_wait_share
        # The processor that waits makes the data, or could compute meanwhile: only the largest part bounds the step.
        largest = max(shares[name] for name in facts.CPU_CLASSES if name != facts.LOADER)
        return "input" if waiting >= max(BOUND_SHARE, largest) else "compute"
    idle = {
        "input": shares[facts.IDLE_LOADER],
        "host": sum(shares[name] for name in _HOST_CLASSES),
        "sync": shares[facts.IDLE_SYNC],
        "copy": shares[facts.EXPOSED_COPY],
        "communication": shares[facts.EXPOSED_COMMUNICATION],
        "unknown": shares[facts.IDLE_UNKNOWN],
    }
    worst = max(idle, key=lambda name: idle[name])
    # A device that is busy twice as long as it waits for any one thing is the bottleneck itself … unless data is late:
    # that wait is pure loss, and the first thing to mend.
    busy = shares[facts.KERNEL] + shares[facts.IDLE_QUEUED]
    if idle[worst] < BOUND_SHARE or (worst != "input" and busy >= 2 * idle[worst]):
        return "device" if busy >= BOUND_SHARE else "unknown"
    return worst


def verdict_of(
    bound: str,
    shares: dict[str, float],
    on_device: bool,
    data_wait_share: float | None,
    loaders: tuple[LoaderFacts, ...],
    matrix: MatrixWork,
    waits_in: str = "",
    spent_in: str = "",
) -> str:
    """One sentence for the top of every report.

    `waits_in`: the call in which the host waits while the GPU idles; `spent_in`: where above all a CPU step spends what
    is outside of its own work.
    """
    if not shares and bound != "input":
        return "no step was traced"
    if bound == "input":
        waiting = shares.get(facts.IDLE_LOADER, data_wait_share or shares.get(facts.LOADER, 0.0))
        if not on_device and data_wait_share is not None:
            waiting = data_wait_share
        how = ", in one process" if loaders and loaders[0].workers == 0 else ""
        return f"input-bound: {waiting:.0%} of the step waits for data{how}"
    if bound == "host":
        parts = {facts.LABELS[name].removeprefix("idle: "): shares[name] for name in _HOST_CLASSES}
        main = max(parts, key=lambda name: parts[name])
        idle_share = sum(parts.values())
        return f"host-bound: the GPU is idle for {idle_share:.0%} of the step while the host prepares its work ({main})"
    if bound == "sync":
        share = shares[facts.IDLE_SYNC]
        waits = f"waits for it in {waits_in}" if waits_in else "waits for it"
        return f"synchronization-bound: the GPU is idle for {share:.0%} of the step because the host {waits}"
    if bound == "copy":
        return f"copy-bound: {shares[facts.EXPOSED_COPY]:.0%} of the step is copying with no kernel running"
    if bound == "communication":
        return f"communication-bound: {shares[facts.EXPOSED_COMMUNICATION]:.0%} of the step waits for other ranks"
    if bound == "device":
        tail = ""
        if matrix.eligible_share >= BOUND_SHARE:
            tail = f"; {matrix.eligible_share:.0%} of kernel time is matrix work off the Tensor Cores"
        return f"GPU-bound: kernels run for {shares[facts.KERNEL]:.0%} of the step{tail}"
    if bound == "compute":
        classes = {name: shares[name] for name in facts.CPU_CLASSES if name != facts.LOADER}
        main = max(classes, key=lambda name: classes[name])
        waits = f", {data_wait_share:.0%} waits for data" if data_wait_share is not None else ""
        what = facts.LABELS[main]
        if main == facts.OTHER:
            what = "outside of forward, backward and optimizer" + (f", above all in {spent_in}" if spent_in else "")
        return f"compute-bound on the CPU: {classes[main]:.0%} of the step is {what}{waits}"
    idle = sum(share for name, share in shares.items() if name in facts.IDLE_CLASSES)
    others = shares[facts.EXPOSED_COMMUNICATION]
    unknown = shares[facts.IDLE_UNKNOWN]
    if others >= BOUND_SHARE:
        return (
            f"the GPU is idle for {idle:.0%} of the step, {unknown:.0%} for no reason that the trace shows, and waits "
            f"for other ranks for {others:.0%}"
        )
    waits = f": the host waits in {waits_in} for work that is queued and does not start" if waits_in else ""
    return f"the GPU is idle for {idle:.0%} of the step, and the trace does not say why{waits}"
