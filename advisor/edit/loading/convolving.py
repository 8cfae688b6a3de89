"""``np.convolve(x, kernel)`` as ``scipy.signal.fftconvolve(x, kernel)``, in a file that has SciPy."""

from __future__ import annotations

import libcst as cst

from advisor.edit.draft import Draft
from advisor.edit.names import bindings, from_module, full_name
from advisor.edit.scopes import string_value

_MODES = ("full", "valid")  # "same" has the length of the longer one, or of the first


def through_transforms(draft: Draft, line: int) -> str | None:
    """Have the one convolution on `line` go through Fourier transforms; why not, as a clause, "" where SciPy lacks."""
    if not any(each.partition(".")[0] == "scipy" for each in bindings(draft).values()):
        return ""
    calls = [each for each in draft.nodes(cst.Call) if full_name(draft, each.func) == "numpy.convolve"]
    there = [each for each in calls if draft.line(each) <= line <= draft.position(each).end.line]
    if len(there) != 1:
        return "which of the convolutions on its line is meant cannot be told"
    if any(each.star for each in there[0].args) or not 2 <= len(there[0].args) <= 3:
        return "what is convolved there cannot be told from the source"
    one, other, *mode = there[0].args
    if one.keyword is not None or other.keyword is not None:
        return "what is convolved there is passed by the names of NumPy's"
    if mode and string_value(mode[0].value) not in _MODES:
        return "which part of the result is meant depends on which signal is the longer one"
    written = from_module(draft, "scipy.signal", "fftconvolve")
    draft.replace(there[0].func, written)
    return None
