"""How fast this machine multiplies in 16 bits, against float32, with more threads, and maps memory, measured.

Its flags do not say. AVX512_BF16 doubles the rate on one processor and halves it on another: where a hypervisor hides
AMX from a Xeon that has it, products in bfloat16 take 1.9 times as long as in float32 (measured with torch 2.14, 256 to
768 rows, convolutions too). Without instructions it is ten to seventy times.
"""

from __future__ import annotations

import contextlib
import mmap
import time
from collections.abc import Callable, Iterator
from typing import Any

TYPES = ("bfloat16", "float16")
# Work that takes float32 less long is doubled and measured anew: a call has its own cost, whatever it computes.
_LEAST_S = 0.4e-3
_PAIRS, _TURNS = 12, 5
_PLAIN = 3.0  # where 16 bits take so many times as long, they do whatever the size
_TOUCHED = 1 << 24  # bytes
_SIZES = (256, 512, 1024, 2048)  # rows and columns
_BATCHES = (2, 8, 32, 128)  # of 64 channels of 28 by 28


def rates(torch: Any) -> dict[str, dict[str, float]]:
    """Type of 16 bits → "product" and "convolution" → its seconds over float32's, on one thread.

    Takes about a fifth of a second, draws no random number and leaves torch's settings as it found them. Best of
    alternating calls, so that what else the machine does hardly matters. One thread, because several wait for the
    slowest of them: beside two busy programs two threads measured 0.6 to 1.6 for what is 1.9, and one 1.8 to 2.0;
    alone both measure the same within a tenth. A type that torch cannot multiply in is left out.
    """
    found: dict[str, dict[str, float]] = {}
    with _threads(torch, 1), torch.inference_mode(), torch.autocast("cpu", enabled=False):
        for name in TYPES:
            try:
                narrow = getattr(torch, name)
                found[name] = {"product": _product(torch, narrow), "convolution": _convolution(torch, narrow)}
            except (RuntimeError, NotImplementedError, AttributeError):  # older versions lack operators in float16
                continue
    return found


def flop_per_s(torch: Any) -> float:
    """FLOP per second that one thread multiplies two matrices of 512 rows with, in float32; the best of a few calls."""
    with _threads(torch, 1), torch.inference_mode(), torch.autocast("cpu", enabled=False):
        matrix = torch.ones(512, 512, dtype=torch.float32, device="cpu")
        best = min(_seconds(lambda: torch.mm(matrix, matrix)) for _ in range(_PAIRS))
    return 2.0 * 512**3 / best


def more_threads(torch: Any, cores: float) -> dict[str, float]:
    """How many times as fast work is with a thread for each core as with the script's fewer; empty where all are used.

    Two matrices of 512 rows, four pictures of 64 channels of 28 by 28, half a million numbers; best of alternating
    calls, in about a tenth of a second.
    """
    now, most = torch.get_num_threads(), max(1, int(cores))
    if now >= most:
        return {}
    found = {}
    with torch.inference_mode(), torch.autocast("cpu", enabled=False):
        matrix = torch.ones(512, 512, dtype=torch.float32, device="cpu")
        images = torch.ones(4, 64, 28, 28, dtype=torch.float32, device="cpu")
        kernel = torch.ones(64, 64, 3, 3, dtype=torch.float32, device="cpu")
        numbers = torch.ones(1 << 19, dtype=torch.float32, device="cpu")
        calls: dict[str, Callable[[], object]] = {
            "product": lambda: torch.mm(matrix, matrix),
            "convolution": lambda: torch.conv2d(images, kernel, padding=1),
            "elementwise": lambda: torch.tanh(numbers),
        }
        for name, call in calls.items():
            best = {now: float("inf"), most: float("inf")}
            for _ in range(_TURNS):
                for threads in best:
                    with _threads(torch, threads):
                        call()  # the first one starts threads
                        best[threads] = min(best[threads], _seconds(call))
            found[name] = round(min(best[now] / best[most], most / now), 2)  # more is another program's doing
    return found


def fault(torch: Any) -> float:
    """Seconds that one thread takes longer for a page of memory that it touches first than for one it touches again.

    The median of three times 16 MB, in a twentieth of a second. 1.3 us on a virtual machine with pages of 4 kB: the
    kernel clears what it gives, and the hypervisor's tables are looked up as well.
    """
    with _threads(torch, 1), torch.inference_mode():
        longer = sorted(_longer_at_first(torch) for _ in range(3))[1]
    return max(0.0, longer / (_TOUCHED / mmap.PAGESIZE))


def _longer_at_first(torch: Any) -> float:
    fresh = mmap.mmap(-1, _TOUCHED, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # as malloc's is
    numbers = torch.frombuffer(fresh, dtype=torch.uint8)  # with which it is unmapped
    return _seconds(lambda: numbers.fill_(1)) - _seconds(lambda: numbers.fill_(2))


@contextlib.contextmanager
def _threads(torch: Any, number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _product(torch: Any, narrow: Any) -> float:
    def at(size: int, dtype: Any) -> Callable[[], object]:
        matrix = torch.ones(size, size, dtype=dtype, device="cpu")
        return lambda: torch.mm(matrix, matrix)

    return _ratio(torch, at, narrow, _SIZES)


def _convolution(torch: Any, narrow: Any) -> float:
    weights = torch.ones(64, 64, 3, 3, dtype=torch.float32, device="cpu")

    def at(size: int, dtype: Any) -> Callable[[], object]:
        images, kernel = torch.ones(size, 64, 28, 28, dtype=dtype, device="cpu"), weights.to(dtype)
        return lambda: torch.conv2d(images, kernel, padding=1)

    return _ratio(torch, at, narrow, _BATCHES)


def _ratio(torch: Any, at: Callable[[int, Any], Callable[[], object]], narrow: Any, sizes: tuple[int, ...]) -> float:
    for size in sizes:
        wide_call, narrow_call = at(size, torch.float32), at(size, narrow)
        wide_call(), narrow_call()  # the first call of a shape makes its kernel
        wide_s, narrow_s = min(_seconds(wide_call), _seconds(wide_call)), _seconds(narrow_call)
        if narrow_s > _PLAIN * wide_s or wide_s >= _LEAST_S or size == sizes[-1]:
            break
    for _ in range(0 if narrow_s > 10 * wide_s else _PAIRS):
        wide_s, narrow_s = min(wide_s, _seconds(wide_call)), min(narrow_s, _seconds(narrow_call))
    return round(narrow_s / wide_s, 2)


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
