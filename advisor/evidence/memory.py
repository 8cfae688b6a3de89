"""Peak memory against capacity."""

from __future__ import annotations

from advisor.evidence.facts import MemoryFacts
from advisor.harness.layout import RunRecord
from advisor.trace.tables import Trace

_CUDA = 1  # c10::DeviceType; ROCm says the same


def memory_facts(record: RunRecord | None, trace: Trace, on_device: bool) -> MemoryFacts:
    """From the timing window where there is a run; from the trace's allocation events otherwise."""
    capacity = device_capacity(trace)
    if record is not None:
        memory = record.memory
        if on_device:
            capacity = memory.capacity or record.device.memory or capacity
            if capacity is not None and memory.free_at_start is not None and memory.peak_reserved is not None:
                # What other processes hold on this device is not there to be used.
                capacity = min(capacity, memory.free_at_start + memory.peak_reserved)
            return MemoryFacts(memory.peak_allocated, memory.peak_reserved, capacity, True)
        available = memory.host_total
        if memory.host_available is not None:
            available = memory.host_available + (memory.rss_peak or 0)
        return MemoryFacts(memory.rss_peak, None, available, False)
    wanted = trace.memory.device_type == (_CUDA if on_device else 0)
    allocated, reserved = trace.memory.allocated[wanted], trace.memory.reserved[wanted]
    peak = int(allocated.max()) if len(allocated) and allocated.max() > 0 else None
    held = int(reserved.max()) if len(reserved) and reserved.max() > 0 else None
    return MemoryFacts(peak, held, capacity if on_device else None, on_device)


def device_capacity(trace: Trace) -> int | None:
    """Bytes of the device's memory, as the trace's device properties say."""
    for device in trace.devices:
        size = device.get("totalGlobalMem")
        if isinstance(size, int | float) and size > 0:
            return int(size)
    return None
