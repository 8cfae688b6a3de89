"""Where a trace's bytes come from: local files and URLs, plain, gzip or zstandard, as a stream of blocks."""

from __future__ import annotations

import glob
import io
import os
import queue
import re
import threading
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, Any, cast

from advisor.errors import BAD_TRACE, USAGE, AdvisorError

# What is taken for a gzip bomb unless told otherwise: more than this many bytes of JSON, and more than `BOMB_RATIO` to
# a compressed one. Public traces have 5 to 30 (an event repeats its names, but not its time and ids), bombs 1000.
BOMB_SIZE = 1 << 30
BOMB_RATIO = 100
# Decompressed bytes per block: big enough that the work per block vanishes, small enough that its objects stay in
BLOCK = 1 << 20
# Compressed bytes read at a time; what is longer is decompressed in a thread of its own.
READ = 256 << 10
# How much of a file is looked at to say whether it is a trace. Some have long metadata before the events.
SNIFF = 1 << 20

# Bytes of JSON to a compressed one: 8 to 20 in the public traces, and used for a guess only.
_USUAL_RATIO = 10
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"

_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*(://|::)")
_NAMES = (".json", ".json.gz", ".json.zst")


def is_url(path: str) -> bool:
    """Whether `path` is for fsspec rather than the local file system."""
    return bool(_URL.match(path))


def _open(path: str) -> IO[bytes]:
    try:
        if is_url(path):
            import fsspec

            return cast("IO[bytes]", fsspec.open(path, "rb").open())
        if os.path.isdir(path):
            raise AdvisorError(f"{path} is a folder; name a trace file in it, or let the command search it", USAGE)
        return open(path, "rb")
    except FileNotFoundError:
        raise AdvisorError(f"there is no file {path}; check the path", USAGE) from None
    except (OSError, ValueError, ImportError) as error:
        raise AdvisorError(f"cannot open {path}: {error}", USAGE) from None


class Blocks:
    """Iterates over the decompressed bytes of a trace in blocks of at most about `BLOCK` bytes.

    ``cut_short`` says why the stream ended before its proper end ("" when it did not): a compressed file
    without its tail still gives everything up to there. ``expected`` is about how many bytes there will be, by the
    size of a local file, and at least how many there were.
    """

    def __init__(self, path: str, limit_bytes: int | None = None) -> None:
        self.path = path
        self.limit_bytes = limit_bytes
        self.cut_short = ""
        self.expected = 0
        self._packed = 0  # bytes read from the file

    def __iter__(self) -> Iterator[bytes]:
        total = 0
        with _open(self.path) as file:
            for block in self._decompressed(file):
                total += len(block)
                self.expected = max(self.expected, total)
                limit = self.limit_bytes
                if limit is None:
                    limit = max(BOMB_SIZE, BOMB_RATIO * self._packed)
                if total > limit:
                    raise AdvisorError(
                        f"{self.path} holds more than {limit / 2**30:.3g} GiB of JSON; "
                        "if it really is a trace of that size, raise the limit (--trace-limit)",
                        BAD_TRACE,
                    )
                if block:
                    yield block

    def _read(self, file: IO[bytes], size: int) -> bytes:
        try:
            data = file.read(size)
        except Exception as error:  # fsspec's file systems raise exceptions of their own
            raise AdvisorError(f"cannot read {self.path}: {error}", BAD_TRACE) from None
        self._packed += len(data)
        return data

    def _decompressed(self, file: IO[bytes]) -> Iterator[bytes]:
        head = self._read(file, READ)
        packed = head.startswith((_GZIP, _ZSTD))
        self.expected = 0 if is_url(self.path) else os.path.getsize(self.path) * (_USUAL_RATIO if packed else 1)
        # By content, not by name: renamed files are common.
        if head.startswith(_GZIP):
            unpacked = self._gunzip(head, file)
        elif head.startswith(_ZSTD):
            unpacked = self._unzstd(head, file)
        else:
            yield head
            while block := self._read(file, BLOCK):
                yield block
            return
        yield from _ahead(unpacked) if len(head) == READ else unpacked

    def _gunzip(self, data: bytes, file: IO[bytes]) -> Iterator[bytes]:
        from isal import isal_zlib
        from isal.igzip_lib import IsalError

        stream = isal_zlib.decompressobj(31)  # 31: gzip wrapper, 32 KiB window
        done = 0
        while data:
            try:
                block = stream.decompress(data, BLOCK)
            except IsalError as error:  # type: ignore[misc]  # typed as Any
                self.cut_short = f"its gzip data are damaged ({error})"
                yield from self._salvage(done)
                return
            done += len(block)
            yield block
            if not stream.eof:
                data = stream.unconsumed_tail or self._read(file, READ)
                continue
            # gzip files may hold several members; anything else behind the first is padding.
            data = stream.unused_data.lstrip(b"\0") or self._read(file, READ)
            if not data.startswith(b"\x1f"):
                return
            stream = isal_zlib.decompressobj(31)
        self.cut_short = "its gzip data end too early"

    def _salvage(self, skip: int) -> Iterator[bytes]:
        """What zlib makes of damaged gzip data beyond the first `skip` bytes, in steps so small that little is lost."""
        with _open(self.path) as file:
            stream = zlib.decompressobj(31)
            while data := stream.unconsumed_tail or self._read(file, READ):
                try:
                    block = stream.decompress(data, 256)
                except zlib.error:
                    return
                if stream.eof:
                    return
                yield block[skip:] if skip else block
                skip = max(0, skip - len(block))

    def _unzstd(self, data: bytes, file: IO[bytes]) -> Iterator[bytes]:
        reader: Any
        try:
            import zstandard
        except ImportError:
            raise AdvisorError(
                f"{self.path} is zstandard-compressed, which needs a package: pip install zstandard", USAGE
            ) from None
        source = cast("IO[bytes]", _Joined(data, file))
        reader = zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True)
        while True:
            try:
                block = reader.read(BLOCK)
            except zstandard.ZstdError as error:
                self.cut_short = f"its zstandard data are damaged ({error})"
                return
            if not block:
                return
            yield block


class _Joined(io.RawIOBase):
    """`head`, then the rest of `file`."""

    def __init__(self, head: bytes, file: IO[bytes]) -> None:
        self._head = head
        self._file = file

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._head:
            head, self._head = self._head, b""
            return head
        return self._file.read(size)


def _ahead(blocks: Iterator[bytes], depth: int = 3) -> Iterator[bytes]:
    """The same blocks, made up to `depth` ahead in a thread: decompression releases the GIL."""
    ready: queue.Queue[bytes | BaseException | None] = queue.Queue(depth)
    stop = threading.Event()

    def put(item: bytes | BaseException | None) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for block in blocks:
                if not put(block):
                    return
            put(None)
        except BaseException as error:  # raised again in the reading thread
            put(error)

    thread = threading.Thread(target=work, name="advisor-gunzip", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        thread.join()


def looks_like_a_trace(path: str) -> bool:
    """Whether the beginning of `path` is that of a trace; False also when it cannot be read."""
    head = b""
    try:
        for block in Blocks(path):
            head += block
            if len(head) >= SNIFF:
                break
    except AdvisorError:
        return False
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith(b"{"):
        return b'"traceEvents"' in start
    return start.startswith(b"[") and b'"ph"' in start


def find_traces(paths: Iterable[str | os.PathLike[str]]) -> list[str]:
    """The trace files that `paths` (files, folders, glob patterns, URLs) stand for, sorted within each, each once.

    Of a folder: its ``*.pt.trace.json`` and ``.json.gz`` where there are any (one per rank), else every JSON
    file that looks like a trace. Raises AdvisorError (USAGE) where there is none.
    """
    found: dict[str, None] = {}
    for path in paths:
        given = os.fspath(path)
        if is_url(given):
            matches = _at_url(given)
        elif os.path.isdir(given):
            matches = _in_folder(given)
            if not matches:
                raise AdvisorError(f"there is no trace (.json, .json.gz, .json.zst) in {given}; check the path", USAGE)
        elif os.path.exists(given):
            matches = [given]
        else:
            matches = []
            for match in sorted(glob.glob(given, recursive=True)):
                matches += _in_folder(match) if os.path.isdir(match) else [match]
            if not matches:
                raise AdvisorError(f"there is no file {given}; check the path", USAGE)
        found.update(dict.fromkeys(matches))
    return list(found)


def _at_url(url: str) -> list[str]:
    """What a URL stands for: a file, or what a pattern or a folder of a remote file system holds."""
    import fsspec

    if "::" in url:  # chained file systems name one file
        return [url]
    try:
        system, path = fsspec.core.url_to_fs(url)
        if glob.has_magic(path) and not system.exists(path):
            matches = [str(system.unstrip_protocol(match)) for match in sorted(system.glob(path))]
        elif system.isdir(path):
            entries = [str(system.unstrip_protocol(entry)) for entry in sorted(system.ls(path, detail=False))]
            matches = _choose([entry for entry in entries if entry.endswith(_NAMES)])
        else:
            return [url]
    except Exception as error:  # fsspec's file systems raise exceptions of their own
        raise AdvisorError(f"cannot look at {url}: {error}", USAGE) from None
    if not matches:
        raise AdvisorError(f"there is no trace (.json, .json.gz, .json.zst) at {url}; check the address", USAGE)
    return matches


def _in_folder(folder: str) -> list[str]:
    paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(_NAMES)]
    return _choose([path for path in paths if os.path.isfile(path)])


def _choose(files: list[str]) -> list[str]:
    profiler = [path for path in files if re.search(r"\.pt\.trace\.json(\.gz|\.zst)?$", path)]
    return profiler or [path for path in files if looks_like_a_trace(path)]
