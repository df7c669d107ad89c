"""CPU quotas and memory limits of control groups, read from made-up trees; and what follows for the threads."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from collage.compiler.compile import _target
from collage.core.cgroup import CpuQuota, cpu_quota, spare_memory
from collage.kernel import target
from collage.kernel.target import Cores, hardware_of, target_of

V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup rw,nsdelegate"


def tree(root: Path, groups: str, mounts: str, files: dict[str, str] | None = None) -> Path:
    """A root folder with these lines in /proc/self, and these files."""
    written = {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts, **(files or {})}
    for name, text in written.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("latin-1"))
    return root


def cores_of(root: Path) -> float | None:
    found = cpu_quota(root)
    return None if found is None else found.cores


def test_v2_in_a_container_sees_its_own_group_as_the_top(tmp_path: Path) -> None:
    root = tree(tmp_path, "0::/\n", V2_MOUNT, {"sys/fs/cgroup/cpu.max": "200000 100000\n"})
    assert cpu_quota(root) == CpuQuota(2.0, "/sys/fs/cgroup/cpu.max")


@pytest.mark.parametrize(
    ("inner", "middle", "expected"),
    [
        ("max 100000", "150000 100000", 1.5),
        ("50000 100000", "400000 100000", 0.5),
        ("400000 50000", "max 100000", 8.0),
        ("max 100000", "max 100000", None),
        ("300000", "max", 3.0),
    ],
)
def test_v2_takes_the_smallest_of_all_groups_on_the_way_up(
    tmp_path: Path, inner: str, middle: str, expected: float | None
) -> None:
    files = {
        "sys/fs/cgroup/kubepods.slice/pod7.slice/cri-9.scope/cpu.max": inner,
        "sys/fs/cgroup/kubepods.slice/pod7.slice/cpu.max": middle,  # the others have none, as the top never has
        "sys/fs/cgroup/elsewhere/cpu.max": "1000 100000",
    }
    root = tree(tmp_path, "0::/kubepods.slice/pod7.slice/cri-9.scope\n", V2_MOUNT, files)
    assert cores_of(root) == expected


def test_v1_controllers_mounted_together_and_named_hierarchies(tmp_path: Path) -> None:
    groups = "11:name=systemd:/init\n4:cpu,cpuacct:/docker/ab:c\n2:cpuset:/docker/ab:c\n0::/\n"
    mounts = (
        "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
        "34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
        "35 31 0:32 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n"
    )
    files = {
        "sys/fs/cgroup/cpu,cpuacct/docker/ab:c/cpu.cfs_quota_us": "250000\n",
        "sys/fs/cgroup/cpu,cpuacct/docker/ab:c/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us": "100000\n",
    }
    found = cpu_quota(tree(tmp_path, groups, mounts, files))
    assert found == CpuQuota(2.5, "/sys/fs/cgroup/cpu,cpuacct/docker/ab:c/cpu.cfs_quota_us")


@pytest.mark.parametrize(
    "text", ["", "\n", "max", "0 100000", "-5 100000", "200000 0", "many 7", "1e9 5", "\xff\xfe\x00", "²²² 1"]
)
def test_what_makes_no_sense_limits_nothing(tmp_path: Path, text: str) -> None:
    assert cpu_quota(tree(tmp_path, "0::/\n", V2_MOUNT, {"sys/fs/cgroup/cpu.max": text})) is None


@pytest.mark.parametrize("groups", ["", "0::/", "rubbish", "::::", "4:cpu", "0::/\x00"])
@pytest.mark.parametrize("mounts", ["", "rubbish - - -", "1 2 3 4 5 6 - cgroup2", V2_MOUNT])
def test_missing_and_damaged_files(tmp_path: Path, groups: str, mounts: str) -> None:
    assert cpu_quota(tmp_path / "nowhere") is None
    root = tree(tmp_path, groups, mounts)
    assert (cpu_quota(root), spare_memory(root)) == (None, None)


def test_memory_is_the_least_that_any_group_has_left(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/a/b/memory.max": "max\n",
        "sys/fs/cgroup/a/b/memory.current": "1000\n",
        "sys/fs/cgroup/a/memory.max": "10000\n",
        "sys/fs/cgroup/a/memory.current": "9000\n",
        "sys/fs/cgroup/a/memory.stat": "anon 5000\ninactive_file 3500\nactive_file 500\n",
    }
    assert spare_memory(tree(tmp_path, "0::/a/b\n", V2_MOUNT, files)) == 4500


def test_memory_of_v1(tmp_path: Path) -> None:
    mount = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
    files = {
        "sys/fs/cgroup/memory/m/memory.limit_in_bytes": "8000",
        "sys/fs/cgroup/memory/m/memory.usage_in_bytes": "9000",
        "sys/fs/cgroup/memory/m/memory.stat": "inactive_file 1\ntotal_inactive_file 400\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "10000",
    }
    assert spare_memory(tree(tmp_path, "4:memory:/m\n", mount, files)) == 0


@pytest.mark.parametrize(
    ("quota", "usable"), [(None, 64), (2.0, 2), (1.5, 1), (0.5, 1), (2.999, 2), (64.0, 64), (100.0, 64)]
)
def test_cores_that_can_be_kept_busy(quota: float | None, usable: int) -> None:
    found = Cores(64, None if quota is None else CpuQuota(quota, "/f"))
    assert found.usable == usable
    assert target_of("a CPU", "", None, found).threads == usable


def test_throttled_measurements_are_kept_apart() -> None:
    """A quota that the threads stay within is none of the key; one that they exceed makes other times."""
    free, bounded = Cores(64), Cores(64, CpuQuota(2.0, "/f"))
    keys = {cores: [target_of("a CPU", "f", n, cores).measured_on for n in (1, 2, 4)] for cores in (free, bounded)}
    assert keys[free] == ["a CPU f"] * 3
    assert keys[bounded] == ["a CPU f", "a CPU f", "a CPU f throttled to 2"]
    assert target_of("a CPU", "f", 4, bounded).hardware == "a CPU f"
    assert target_of("a CPU", "f", 8, Cores(2, CpuQuota(2.0, "/f"))).throttled_to is None
    assert {hardware_of(each) for found in keys.values() for each in found} == {"a CPU f"}


@pytest.fixture
def under_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under ``--cpus=1.5`` on a machine of 64 cores."""
    monkeypatch.setattr(target, "cpu_quota", lambda: CpuQuota(1.5, "/sys/fs/cgroup/cpu.max"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))


@pytest.mark.usefixtures("under_quota")
def test_threads_beyond_the_quota_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    assert _target(None).threads == 1
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        assert _target(2).threads == 2
    (record,) = caplog.records
    assert record.getMessage() == (
        "2 threads asked for, but this process may use 1 core (CPU quota of 1.5 in /sys/fs/cgroup/cpu.max)"
    )
