"""Pieces → parts, in the order of the file: here, or ahead by worker processes where there is enough to do."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from advisor.trace.cuts import Cut, Cuts
from advisor.trace.fill import Filler, Part, Piece
from advisor.trace.source import Blocks

if TYPE_CHECKING:
    from advisor.trace.workers import Worker

# Bytes of JSON from which on starting two processes (0.2 s of a core each) is repaid: reading these takes 0.5 s of one.
WORTH_WORKERS = 96 << 20


class Made(NamedTuple):
    """A part, and who made it (each filler has codes of its own)."""

    part: Part
    filler: Hashable


class _Job:
    """A piece that a worker has."""

    def __init__(self, cut: Cut, worker: Worker | None) -> None:
        self.cut = cut
        self.worker = worker
        self.done = False
        self.part: Part | None = None


class Decoding:
    """Iterates over (piece, its part), in order; the part is None where the piece does not decode as it is.

    After such a piece the caller may say that some of it is unread (:meth:`back`), or that the list ended in it
    (:meth:`behind`). `workers` is how many processes may be started, once the file proves long.
    """

    def __init__(self, cuts: Cuts, blocks: Blocks, workers: int) -> None:
        self._cuts = cuts
        self._blocks = blocks
        self._allowed = workers if workers > 1 else 0
        self._filler = Filler()
        self._workers: list[Worker] = []
        self._waiting: deque[_Job] = deque()

    def __enter__(self) -> Decoding:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.stop()

    def __iter__(self) -> Iterator[tuple[Cut, Made | None]]:
        while True:
            if self._allowed and self._blocks.expected >= WORTH_WORKERS:
                self._start()
            self._hand_out()
            if self._waiting:
                yield self._first()
            else:
                cut = self._cuts.next()
                if cut is None:
                    return
                yield self._here(cut)

    def made(self, piece: Piece) -> Made:
        """The part of events that the caller has decoded."""
        return Made(self._filler.part(piece), None)

    def back(self, unread: bytes) -> None:
        """Reading goes on with what is `unread` of the last piece, then what comes after that piece."""
        self._cuts.back(unread, self._take_back())

    def behind(self, end: bytes) -> bytes:
        """What follows the array, which ended in the last piece with `end` behind it, as far as it was read."""
        return self._cuts.behind(end, self._take_back())

    def _here(self, cut: Cut) -> tuple[Cut, Made | None]:
        part = self._filler.fill(cut.array)
        return cut, Made(part, None) if part is not None else None

    def _start(self) -> None:
        from advisor.trace.workers import Worker

        try:
            for _ in range(self._allowed):
                self._workers.append(Worker())
        except OSError:  # no more processes or memory allowed: then with those that there are
            pass
        self._allowed = 0

    def _hand_out(self) -> None:
        """Hears what workers have to say, and gives them pieces as long as they have room."""
        if self._workers:
            self._listen(0)
        while worker := max((each for each in self._workers if each.room), key=lambda each: each.room, default=None):
            cut = self._cuts.next()
            if cut is None:
                return
            job = _Job(cut, worker)
            if not worker.ask(cut.array, job):
                job.worker = None  # done here when its turn comes
            self._waiting.append(job)

    def _first(self) -> tuple[Cut, Made | None]:
        job = self._waiting[0]
        while job.worker is not None and not job.done and not job.worker.dead:
            self._listen(None)
        self._waiting.popleft()
        if job.worker is None or not job.done:
            return self._here(job.cut)
        return job.cut, Made(job.part, id(job.worker)) if job.part is not None else None

    def _listen(self, timeout: float | None) -> None:
        from advisor.trace.workers import heard

        for worker in heard(self._workers, timeout):
            answer = worker.answer()
            if answer is None:
                continue
            job, part = answer
            assert isinstance(job, _Job)
            job.done, job.part = True, part
            if job not in self._waiting and part is not None:
                worker.lose(part)

    def _take_back(self) -> list[Cut]:
        for job in self._waiting:
            if job.worker is not None and job.part is not None:
                job.worker.lose(job.part)
        cuts = [job.cut for job in self._waiting]
        self._waiting.clear()
        return cuts
