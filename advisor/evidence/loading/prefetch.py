"""Batches made ahead: how long the step waits for workers whose fetches are not all alike.

Workers that keep up on the whole still let the step wait when one batch takes long (a new shard is opened, a request
is repeated) and the batches that were made ahead are used up meanwhile. DataLoader hands its workers the next indices
in turn, ``prefetch_factor`` for each ahead of the batch that the script takes, and delivers in order.
"""

from __future__ import annotations

from collections.abc import Sequence

from advisor.harness.layout import Loader

DEFAULT = 2  # DataLoader's own
SHM_SHARE = 0.5  # of /dev/shm that batches may take: the other half is for others
# The sequence is gone through so often: the first time fills what is made ahead and is not counted.
_ROUNDS = 3


def wait_s(fetches: Sequence[Sequence[float]], between_s: float, prefetch: int) -> float:
    """Mean seconds that a batch is waited for.

    `fetches`: seconds of each worker's batches, in order, as many workers as the loader has; `between_s`: seconds from
    receiving one batch to asking for the next; `prefetch`: batches ahead for each worker. 0 for workers of which
    nothing is known. The workers' cores are their own: true where what takes long is waiting.
    """
    each = min((len(seconds) for seconds in fetches), default=0)
    workers = len(fetches)
    if not each or prefetch < 1:
        return 0.0
    count = each * workers
    ahead = prefetch * workers
    finished = [0.0] * (count * _ROUNDS)  # when batch i was made …
    taken = [0.0] * (count * _ROUNDS)  # … and when the script had it
    waited = 0.0
    asked = 0.0
    for i in range(count * _ROUNDS):
        # Its worker has the index from the moment that the batch so far ahead of it was taken.
        begun = max(finished[i - workers] if i >= workers else 0.0, taken[i - ahead] if i >= ahead else 0.0)
        finished[i] = begun + fetches[i % workers][i // workers % each]
        taken[i] = max(asked, finished[i])
        if i >= count:
            waited += taken[i] - asked
        asked = taken[i] + between_s
    return waited / (count * (_ROUNDS - 1))


def shorter_wait(loader: Loader, waited_s: float, between_s: float, prefetch: int) -> float:
    """Of `waited_s` seconds that a batch is waited for, those that go away with `prefetch` batches ahead.

    What the loader's fetches do not explain of the wait stays. `between_s` as in :func:`wait_s`.
    """
    if not loader.fetches or len(loader.fetches) != loader.num_workers:
        return 0.0
    now = wait_s(loader.fetches, between_s, loader.prefetch_factor or DEFAULT)
    then = wait_s(loader.fetches, between_s, prefetch)
    return min(waited_s, now) * (1.0 - then / now) if then < now else 0.0


def made_ahead_bytes(loader: Loader, workers: int, prefetch: int) -> int:
    """Bytes of the batches that so many workers keep in shared memory."""
    return workers * prefetch * sum(tensor.bytes for tensor in loader.tensors)
