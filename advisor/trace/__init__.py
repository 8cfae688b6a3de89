"""Kineto traces as columns: :func:`read_trace`, :func:`find_traces`, :class:`Trace`; ``intervals`` works on them."""

from __future__ import annotations

from advisor.trace.reader import read_trace
from advisor.trace.source import find_traces
from advisor.trace.tables import Trace

__all__ = ["Trace", "find_traces", "read_trace"]
