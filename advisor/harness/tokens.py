"""Token ids among what a model is called with: how much of them is padding, and whether a text grows by one."""

from __future__ import annotations

from typing import Any

from .layout import TensorInfo
from .looking import may_compute

_LEAST_COLUMNS = 16  # of token ids
_WHOLE = ("int64", "int32")  # types of token ids


def grown(before: list[TensorInfo], now: list[TensorInfo]) -> int:
    """The columns of token ids among a call's inputs that have one more than those of the call before; 0 where none do.

    Where all that is known of the earlier tokens is in a cache, the newest come alone: what grows then is their mask.
    """
    if any(_newest_alone(each) for each in now):
        return 0
    ids, earlier = ([each.shape for each in given if _may_be_ids(each)] for given in (now, before))
    if len(ids) != len(earlier):
        return 0
    wider = [shape[1] for shape, (rows, width) in zip(ids, earlier, strict=True) if shape == [rows, width + 1]]
    return max(wider, default=0)


def columns(given: list[TensorInfo]) -> int:
    """The columns of the token ids among a call's inputs, the fewest of several (a translation's); 0 of none."""
    return min((each.shape[1] for each in given if _may_be_ids(each)), default=0)


def _newest_alone(info: TensorInfo) -> bool:
    """Whether it may be one token of each sequence: its id, a vector of ids, or its embedding."""
    shape = info.shape
    if len(shape) == 1:
        return info.dtype in _WHOLE
    return (_may_be_ids(info) or len(shape) == 3) and shape[1] == 1


def _may_be_ids(info: TensorInfo) -> bool:
    return len(info.shape) == 2 and info.dtype in _WHOLE


def token_ids(torch: Any, tensors: list[Any]) -> list[Any]:
    """Of tensors those that look like token ids and what goes with them (masks, labels): integers of one shape, with
    two dimensions and not too few columns. Of several texts, a question and a document, the longest.
    """
    ids = [
        each
        for each in tensors
        if may_compute(torch, each)
        if each.dim() == 2 and each.dtype in (torch.int64, torch.int32) and each.numel()
    ]
    if not ids:
        return []
    longest = max(ids, key=lambda each: int(each.shape[1]))
    ids = [each for each in ids if each.shape == longest.shape and each.device == longest.device]
    return ids if longest.shape[1] >= _LEAST_COLUMNS else []


def padding(torch: Any, ids: list[Any]) -> Any:
    """The share of columns, at the end or at the beginning, that hold one and the same number in all rows of token ids.

    The least share of those tensors, a tensor on their device; 0 where a mask says that nothing is padding.
    """
    width = ids[0].shape[1]
    with torch.inference_mode():
        columns = torch.arange(width, device=ids[0].device)
        ends = []
        for number, each in enumerate(ids):
            last = (each != each[:1, -1:]).any(0)
            first = (each != each[:1, :1]).any(0)
            behind = width - 1 - torch.where(last, columns, -1).amax()
            before = torch.where(first, columns, width).amin()
            runs = torch.stack((behind, before))
            # The ones of a mask are no padding. What is constant says nothing of it (token types), but for a mask
            # of ones beside the ids: none of them is.
            corners, mask = torch.stack((each[0, -1], each[0, 0])), each.amax() <= 1
            runs = torch.where((corners == 1) & mask, 0, runs)
            whole = torch.where(mask & (corners[0] == 1), 0, width) if number else width
            ends.append(torch.where(behind == width, whole, runs))
        most = torch.stack(ends).amin(0).amax()
        return torch.where((most == width) | (most == 1), 0, most) / width  # all begin with the same token


def is_filled_in(torch: Any, before: Any, now: Any) -> Any:
    """Whether token ids are those of the call before, with some of the numbers that its last column holds replaced.

    As a masked diffusion model writes its answer: what is not written yet is no padding. A tensor on their device;
    False of ids of another shape.
    """
    if before is None or before.shape != now.shape or before.device != now.device:
        return torch.zeros((), dtype=torch.bool, device=now.device)
    with torch.inference_mode():
        kept = (now == before) | (before == before[:, -1:])
        return kept.all() & (now != before).any()


def unevenness(torch: Any, ids: list[Any]) -> Any:
    """The share of token ids that fill the rows up to one length, at their ends or at their beginnings.

    The number that fills them is the one that the row with the longest run of one number ends with; zero in a mask. The
    least share of those tensors, a tensor on their device; those of one number alone (token types) say nothing.
    """
    with torch.inference_mode():
        shares = []
        for each in ids:
            mask = (each.amin() >= 0) & (each.amax() <= 1)
            sides = []
            for rows in (each, each.flip(1)):
                last = rows[:, -1:]
                runs = (rows == last).flip(1).cumprod(1).sum(1)
                fill = torch.where(mask, 0, last[:, 0].gather(0, runs.argmax().view(1)))
                sides.append(torch.where(last[:, 0] == fill, runs, 0).sum() / rows.numel())
            share = torch.stack(sides).amax()
            constant = (each == each[0, 0]).all()
            # A mask of ones: nothing is padding. Ids of one number, or types of zeros: who knows.
            shares.append(torch.where(constant & ~(mask & (each[0, 0] == 1)), 1.0, share))
        least = torch.stack(shares).amin()
        return torch.where(least == 1, 0.0, least)
