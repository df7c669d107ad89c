"""What a slow GPU has timed, and what had too little memory or time, is kept with the reason and decided again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collage.backends.cublas_kernels import library as cublas
from collage.backends.cudnn_kernels import library as cudnn
from collage.check.stages import looks_like_memory, rejection_of
from collage.core.nvml import Clocks
from collage.measure_db.database import Database
from collage.measure_db.doubt import Doubt, GpuNow
from collage.measure_db.results import Outcome, Rejection, RejectionKind, Slower, late
from tests.compile.measure_db.test_exchange import KEY, SURE, filled, merged

FAST, SLOW = Clocks("H100", 1980, 2619), Clocks("H100", 1200, 2619)
NEAR, COOL = Clocks("H100", 1905, 2619), Clocks("H100", 1980, 1593)
CAPPED, OTHER = Clocks("H100", 1200, 2619, power_capped=True), Clocks("Small GPU", 900, 1000)
SHORT = Rejection(RejectionKind.MEMORY, "out of memory of the GPU", 10 << 30)
KEYS = [replace(KEY, digest=f"d{number}") for number in range(7)]
NOTED = [FAST, SLOW, NEAR, COOL, CAPPED, OTHER]


def known(path: Path, now: GpuNow, rows: dict[object, Outcome]) -> set[str]:
    """The digests that a compile knows which finds such a GPU."""
    filled(path, rows)
    with Database(path) as database:
        database.doubt(Doubt(lambda: now, on_gpu=[KEY.backend]))
        return {key.digest for key in database.get(KEYS)}


def test_what_was_measured_at_low_clocks_is_unknown_when_they_are_high(tmp_path: Path) -> None:
    rows = {key: replace(SURE, clocks=clocks) for key, clocks in zip(KEYS, NOTED, strict=False)}
    everything = {f"d{number}" for number in range(6)}
    assert known(tmp_path / "fast", GpuNow(clocks=FAST), rows) == everything - {"d1", "d3"}
    assert known(tmp_path / "near", GpuNow(clocks=NEAR), rows) == everything - {"d1", "d3"}
    for number, now in enumerate((SLOW, COOL, OTHER, None)):
        assert known(tmp_path / f"same{number}", GpuNow(clocks=now), rows) == everything


def test_what_is_recorded_in_this_compile_is_not_doubted(tmp_path: Path) -> None:
    slow = replace(SURE, clocks=SLOW)
    with Database(filled(tmp_path / "db", {KEYS[0]: replace(SURE, clocks=FAST), KEYS[1]: slow})) as database:
        database.doubt(Doubt(lambda: GpuNow(1 << 40, FAST), on_gpu=[KEY.backend]))
        assert KEYS[1] not in database.get(KEYS)
        database.put(KEYS[1], slow)
        database.put(KEYS[2], SHORT)
        assert database.get(KEYS[1:]) == {KEYS[1]: slow, KEYS[2]: SHORT}


@pytest.mark.parametrize(
    ("free_bytes", "again"),
    [(None, False), (9 << 30, False), (10 << 30, False), (10_300 << 20, False), (12 << 30, True)],
)
def test_a_kernel_is_tried_again_where_more_memory_is_free(free_bytes: int | None, again: bool, tmp_path: Path) -> None:
    rows = {KEYS[0]: SHORT, KEYS[1]: replace(SHORT, free_bytes=None)}
    assert known(tmp_path / "db", GpuNow(free_bytes), rows) == ({"d1"} if again else {"d0", "d1"})


@pytest.mark.parametrize(("limit_s", "again"), [(0.0, False), (5.0, False), (60.0, True)])
def test_what_took_too_long_is_tried_again_with_a_higher_limit(limit_s: float, again: bool, tmp_path: Path) -> None:
    slow = Rejection(RejectionKind.TIMEOUT, late(5.0) + "; it printed: nothing")
    rows = {KEYS[0]: slow, KEYS[1]: Rejection(RejectionKind.TIMEOUT, "hung beyond the worker's own limit")}
    with Database(filled(tmp_path / "db", rows)) as database:
        database.doubt(Doubt())
        assert (KEYS[0] not in database.get(KEYS, lambda _: limit_s)) is again
        assert KEYS[1] in database.get(KEYS, lambda _: limit_s)
        database.put(KEYS[0], slow)
        assert KEYS[0] in database.get(KEYS, lambda _: limit_s)


@pytest.mark.parametrize(("now", "again"), [(None, False), (4 << 30, False), (11 << 30, False), (16 << 30, True)])
def test_a_kernel_for_the_host_is_tried_again_where_more_of_its_memory_is_free(
    now: int | None, again: bool, tmp_path: Path
) -> None:
    """That of a GPU does not count."""
    rows = {KEYS[0]: SHORT, KEYS[1]: replace(SHORT, free_bytes=None)}
    with Database(filled(tmp_path / "db", rows)) as database:
        database.doubt(Doubt(lambda: GpuNow(1 << 40), lambda: now))
        assert {*database.get(KEYS)} == ({KEYS[1]} if again else {*rows})


def test_what_is_recorded_is_read_and_merged(tmp_path: Path) -> None:
    rows = {KEYS[0]: replace(SURE, clocks=CAPPED), KEYS[1]: SHORT, KEYS[2]: Slower(3.0, 2.0, 3, 0.1, FAST)}
    path = filled(tmp_path / "db", rows)
    with Database(path) as database:
        assert database.get(KEYS) == rows
        assert database.best_clocks(KEY.hardware) == {"H100": FAST}
        assert database.best_clocks("another machine") == {}
    found = {row["digest"]: (row["clocks"], row["free_bytes"]) for row in merged(tmp_path, path)}
    assert found["d0"][0] == '{"gpu": "H100", "sm_mhz": 1200, "memory_mhz": 2619, "power_capped": true}'
    assert found["d1"] == (None, 10 << 30)


class NoMemory:
    """cuDNN where the GPU has no memory left."""

    def cudnnBackendExecute(self, *_: Any) -> int:  # noqa: N802
        return 4004

    def cudnnGetLastErrorString(self, text: Any, size: int) -> None:  # noqa: N802
        text.value = b"nothing is left"


def test_a_lack_of_memory_is_known_by_the_words_of_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn, "library", NoMemory)
    for call in (lambda: cublas.check_product(3), lambda: cudnn.call("cudnnBackendExecute")):
        with pytest.raises(RuntimeError) as raised:
            call()
        assert rejection_of("run", raised.value).kind is RejectionKind.MEMORY, raised.value
    with pytest.raises(cublas.CublasError) as other:
        cublas.check_product(13)
    assert rejection_of("run", other.value).kind is RejectionKind.FAILED
    for text in (
        "cuModuleLoadData: CUDA_ERROR_OUT_OF_MEMORY: x",
        "CUDA out of memory. Tried to allocate 20.00 MiB",
        "[executionContext.cpp::ExecutionContext::552] Error Code 2: OutOfMemory",
        "CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    ):
        assert looks_like_memory(text), text
