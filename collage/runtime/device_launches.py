"""Launches on a GPU that follow each other: enqueued on streams, and replayed as CUDA graphs from the third run on.

The streams are those of the program's schedule. Launches of the whole team are all on one stream here. Copies from and
to the host's memory stay outside of graphs. The host waits at the end, so that whatever runs next finds all values.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from collage.core.cuda_driver import Driver, driver, lost_context
from collage.kernel.device_call import DeviceCall
from collage.runtime.device_scan import DeviceFlag
from collage.schedule.schedule import TEAM

log = logging.getLogger(__name__)

_FEWEST = 2
"""One kernel alone is no faster in a graph."""


@dataclass(frozen=True)
class DeviceLaunch:
    """Launch ``number`` of a program on its ``stream``, after the launches ``after`` on other streams."""

    number: int
    call: DeviceCall
    stream: int = TEAM
    after: tuple[int, ...] = ()


class DeviceLaunches:
    """The launches as one call, which waits until all are done."""

    def __init__(self, launches: Sequence[DeviceLaunch], flag: DeviceFlag | None = None) -> None:
        """``flag`` is what scans among the launches set."""
        self._driver = driver()
        self._flag = flag
        self._segments = [
            _Segment(self._driver, list(group), replayed=not with_host)
            for (with_host, _), group in groupby(launches, lambda each: (each.call.with_host, each.stream == TEAM))
        ]

    def __call__(self) -> None:
        gpu = self._driver
        gpu.enter()
        with gpu.turn:
            for segment in self._segments:
                segment.enqueue()
            if self._flag is not None:
                self._flag.fetch(gpu.stream)
            gpu.synchronize(gpu.stream)
            if self._flag is not None:
                self._flag.pass_on()

    def replay(self) -> None:
        """Enqueue what is replayed, without copies from and to the host, and do not wait for it. For measuring."""
        self._driver.enter()
        with self._driver.turn:
            for segment in self._segments:
                if segment.replayed:
                    segment.enqueue()


class _Segment:
    """Launches that are replayed together, or enqueued one after another."""

    def __init__(self, gpu: Driver, launches: Sequence[DeviceLaunch], *, replayed: bool) -> None:
        self._driver = gpu
        self._launches = launches
        self.replayed = replayed
        """Whether it may be a graph: it has no copies from or to the host's memory."""
        self._waits_for_warm_up = (
            replayed
            and all(each.call.capturable for each in launches)
            and (len(launches) >= _FEWEST or any(each.call.many for each in launches))
        )
        self._warm = False
        self._graph = 0
        streams = sorted({each.stream for each in launches} - {TEAM})
        self._streams = {TEAM: gpu.stream, **dict.fromkeys(streams[:1], gpu.stream)}
        for each in streams[1:]:
            self._streams[each] = gpu.new_stream()
            weakref.finalize(self, gpu.drop_stream, self._streams[each]).atexit = False
        self._others = [self._streams[each] for each in streams[1:]]
        inside = {each.number for each in launches}
        needed = {u for each in launches for u in each.after} & inside
        self._happened = {u: self._event() for u in needed}
        self._begun = self._event() if self._others else 0
        self._joined = [self._event() for _ in self._others]

    def enqueue(self) -> None:
        """Enqueue the launches on the main stream, and on others that begin and end with it."""
        if self._graph:
            self._driver.launch_graph(self._graph, self._driver.stream)
        elif self._waits_for_warm_up and self._warm:
            self._capture()
        else:
            self._warm = True
            self._enqueue_all()

    def _capture(self) -> None:
        """Make the graph and run it. Libraries load what they need in the first run, which is none of a graph's."""
        gpu = self._driver
        try:
            self._graph = gpu.captured(gpu.stream, self._enqueue_all)
        except Exception as error:  # of the driver, or of a library that is not to be captured
            if lost_context():
                raise
            log.warning("%d launches are enqueued one by one: %s", len(self._launches), error)
            self._waits_for_warm_up = False
            self._enqueue_all()
            return
        weakref.finalize(self, gpu.drop_graph, self._graph).atexit = False
        gpu.launch_graph(self._graph, gpu.stream)

    def _enqueue_all(self) -> None:
        gpu = self._driver
        if self._others:
            gpu.record(self._begun, gpu.stream)
            self._wait_each(self._others, [self._begun])
        for each in self._launches:
            stream = self._streams[each.stream]
            self._wait_each([stream], [self._happened[u] for u in each.after if u in self._happened])
            each.call.enqueue(stream)
            if each.number in self._happened:
                gpu.record(self._happened[each.number], stream)
        for stream, event in zip(self._others, self._joined, strict=True):
            gpu.record(event, stream)
            gpu.wait(gpu.stream, event)

    def _wait_each(self, streams: Iterable[int], events: Sequence[int]) -> None:
        for stream in streams:
            for event in events:
                self._driver.wait(stream, event)

    def _event(self) -> int:
        found = self._driver.new_event()
        weakref.finalize(self, self._driver.drop_event, found).atexit = False
        return found
