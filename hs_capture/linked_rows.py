"""The rows of a capture, those in its own file and those in the files that it is linked to."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from hs_capture.errors import FormatError
from hs_capture.format.container import ContainerReader
from hs_capture.format.metadata import INPUT_IDS
from hs_capture.intervals import subtract

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import NDArray
    from typing_extensions import Self

    from hs_capture.format.footer import Stream
    from hs_capture.format.links import Source

_ALIKE = (
    *("run_id", "weights_version", "lora", "layer_ids", "final", "hidden_size", "dtype"),
    "model_class",
)
"""What a capture and the one that it has rows of agree in."""


class LinkedReader:
    """Reads one capture; use it as a context manager. Other files are opened when they are needed.

    Errors are those of `ContainerReader`. It is a `FileNotFoundError` that says whose rows it held
    when the file of a source is gone, and a `FormatError` when what is there is of another request.
    """

    def __init__(self, path: str, sources: tuple[Source, ...]) -> None:
        self._own = ContainerReader(path)
        self._sources = sources
        self._opened: dict[str, ContainerReader] = {}
        self._checked: set[Source] = set()
        self._files = ExitStack()
        self._files.callback(self._own.close)
        self.metadata: dict[str, Any] = self._own.metadata
        self.streams: dict[str, Stream] = self._own.streams

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._files.close()

    def read(self, stream: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """The rows [start, stop) of a stream, as `ContainerReader.read` gives them."""
        if stop is None and stream in self.streams:
            stop = self.streams[stream].rows
        parts = [] if stream == INPUT_IDS else list(self._parts(start, stop or 0))
        if not parts:
            return self._own.read(stream, start, stop)
        stop = stop or 0
        # An empty read has the right shape, type and errors.
        like = self._own.read(stream, start, start)
        rows = np.empty((stop - start, *like.shape[1:]), like.dtype)
        for source in parts:
            first, last = max(source.start, start), min(source.stop, stop)
            rows[first - start : last - start] = self._open(source).read(stream, first, last)
        for first, last in subtract((start, stop), [(s.start, s.stop) for s in parts]):
            rows[first - start : last - start] = self._own.read(stream, first, last)
        return rows

    def _parts(self, start: int, stop: int) -> Iterator[Source]:
        return (s for s in self._sources if max(s.start, start) < min(s.stop, stop))

    def _open(self, source: Source) -> ContainerReader:
        """The file of `source`, after it was found to be of the right request."""
        reader = self._opened.get(source.file)
        if reader is None:
            try:
                reader = ContainerReader(source.file)
            except FileNotFoundError:
                raise FileNotFoundError(
                    errno.ENOENT,
                    f"rows [{source.start}, {source.stop}) of {self._own.path} were in this file, "
                    f"the capture of rid {source.rid!r}, which is gone; open the store again",
                    source.file,
                ) from None
            self._files.callback(reader.close)
            self._opened[source.file] = reader
        if source not in self._checked:
            self._check(source, reader)
            self._checked.add(source)
        return reader

    def _check(self, source: Source, reader: ContainerReader) -> None:
        wrong = next(self._differences(source, reader), None)
        if wrong is not None:
            raise FormatError(
                f"{reader.path}: {wrong}, but {self._own.path} takes rows [{source.start}, "
                f"{source.stop}) from it; one of the two files is not what the server wrote"
            )

    def _differences(self, source: Source, reader: ContainerReader) -> Iterator[str]:
        found = reader.metadata.get("key")
        if found != source.key:
            yield f"metadata: key is {found!r}, not {source.key}"
        for name in _ALIKE:
            theirs, ours = reader.metadata.get(name), self.metadata.get(name)
            if theirs != ours:
                yield f"metadata: {name} is {theirs!r}, not {ours!r}"
        rows = reader.streams[INPUT_IDS].rows if INPUT_IDS in reader.streams else 0
        if rows < source.stop:
            yield f"{INPUT_IDS}: it has {rows} rows"
            return
        ids = [r.read(INPUT_IDS, source.start, source.stop) for r in (reader, self._own)]
        other = np.flatnonzero(ids[0] != ids[1])
        if len(other):
            yield f"{INPUT_IDS}: token {source.start + int(other[0])} is another"
