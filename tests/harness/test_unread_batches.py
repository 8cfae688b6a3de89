"""What is delivered and never read, by the storages that functions are given."""

from __future__ import annotations

from typing import Any

import torch

from advisor.harness.looking import storage_key, weak_storage
from advisor.harness.watches.unread_batches import UnreadBatches

KEPT: list[torch.Tensor] = []


def batch() -> dict[str, Any]:
    return {
        "x": torch.zeros(1 << 17),
        "scan": torch.zeros(1 << 18),
        "more": [torch.zeros(1 << 17)],
        "id": torch.ones(1),
    }


def followed(reads: Any, steps: int = 3) -> dict[tuple[int, str], int]:
    """`reads` says of each step's batch which tensors are read."""
    seen = UnreadBatches(torch.Tensor, storage_key, weak_storage)
    given: Any = None
    for step in range(steps):
        given = batch()
        seen.delivered(0, given, step)
        seen.read(map(storage_key, reads(given, step)))
    del given
    return seen.unread(steps - 1)


def test_what_no_step_reads() -> None:
    assert followed(lambda given, step: [given["x"], given["id"]]) == {
        (0, "['scan']"): 1 << 20,
        (0, "['more'][0]"): 1 << 19,
    }


def test_what_one_step_reads_is_read() -> None:
    found = followed(lambda given, step: [given["x"], given["more"][0], *([given["scan"]] if step == 2 else [])])
    assert not found


def test_what_is_kept_is_for_later() -> None:
    def keeps(given: dict[str, Any], step: int) -> list[torch.Tensor]:
        KEPT.append(given["scan"])
        return [given["x"], given["more"][0]]

    assert not followed(keeps)
    KEPT.clear()


def test_a_tuple_is_named_by_its_numbers() -> None:
    seen = UnreadBatches(torch.Tensor, storage_key, weak_storage)
    for step in range(3):
        given = (torch.zeros(1 << 17), torch.zeros(1 << 17))
        seen.delivered(1, given, step)
        seen.read([storage_key(given[0])])
    del given
    assert seen.unread(2) == {(1, "[1]"): 1 << 19}


def test_parts_of_one_storage_are_read_together() -> None:
    """What a language model is given, and the same shifted by one."""
    seen = UnreadBatches(torch.Tensor, storage_key, weak_storage)
    for step in range(3):
        ids = torch.zeros(64, 4097)
        given = {"ids": ids[:, :-1], "labels": ids[:, 1:], "same": ids}
        seen.delivered(0, given, step)
        seen.read([storage_key(given["ids"])])
    del given, ids
    assert not seen.unread(2)


def test_the_bytes_of_a_whole_batch() -> None:
    seen = UnreadBatches(torch.Tensor, storage_key, weak_storage)
    for step, rows in enumerate((4, 4, 1)):  # an epoch's last one is short
        seen.delivered(2, (torch.zeros(rows, 1 << 17), torch.zeros(rows, 1 << 17)), step)
    assert seen.whole(2) == 2 * 4 * (1 << 19) and seen.whole(1) == 0
