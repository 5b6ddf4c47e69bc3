import os

import numpy as np
import pytest

from equipoise.experiments import memory

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux")


def test_this_machine():
    assert 1e8 < memory.memory_limit() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert memory.out_of_memory_kills() >= 0


def test_peak_of_a_process():
    before = memory.peak_memory(os.getpid())
    size = before + 50_000_000
    block = np.ones(size, dtype=np.uint8)
    assert memory.peak_memory(os.getpid()) > block.nbytes
    assert memory.peak_memory(2**22 + 1) == 0, "no such process"


@pytest.mark.parametrize("version", [1, 2])
def test_control_groups(tmp_path, monkeypatch, version):
    group = tmp_path / "cgroup" / ("memory/job" if version == 1 else "job")
    (tmp_path / "proc" / "self").mkdir(parents=True)
    group.mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("4:memory:/job\n1:cpu:/\n" if version == 1 else "0::/job\n")
    (tmp_path / "proc" / "meminfo").write_text("MemTotal:       16000000 kB\nMemFree: 1 kB\n")
    monkeypatch.setattr(memory, "PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "CGROUPS", tmp_path / "cgroup")
    assert memory.memory_limit() == 16_000_000 * 1024
    if version == 1:
        (group / "memory.limit_in_bytes").write_text("9223372036854771712\n")
        (group / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    else:
        (group / "memory.max").write_text("max\n")
        (group / "memory.events").write_text("low 0\noom 5\noom_kill 3\noom_group_kill 0\n")
    assert memory.memory_limit() == 16_000_000 * 1024
    assert memory.out_of_memory_kills() == 3
    (group / ("memory.limit_in_bytes" if version == 1 else "memory.max")).write_text("4000000000\n")
    assert memory.memory_limit() == 4_000_000_000


@pytest.fixture
def nested_groups(tmp_path, monkeypatch):
    """The folder of a job, version 2; the process is in a step of it."""
    step = tmp_path / "cgroup" / "slurm" / "job" / "step"
    (tmp_path / "proc" / "self").mkdir(parents=True)
    step.mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/slurm/job/step\n")
    monkeypatch.setattr(memory, "PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "CGROUPS", tmp_path / "cgroup")
    return step.parent


def test_limits_of_outer_groups_hold(nested_groups):
    (nested_groups / "step" / "memory.max").write_text("max\n")
    (nested_groups / "memory.max").write_text("3000000000\n")
    (nested_groups.parent / "memory.max").write_text("8000000000\n")
    assert memory.memory_limit() == 3_000_000_000


def test_one_kill_counts_once(nested_groups):
    """The count of a group of version 2 contains those of the groups in it."""
    (nested_groups / "step" / "memory.events").write_text("oom_kill 1\n")
    (nested_groups / "memory.events").write_text("oom_kill 1\n")
    assert memory.out_of_memory_kills() == 1


def test_kills_of_the_machine_count_without_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "PROC", tmp_path)
    (tmp_path / "vmstat").write_text("nr_free_pages 17\noom_kill 2\n")
    assert memory.out_of_memory_kills() == 2


def test_unknown_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "PROC", tmp_path)
    assert memory.memory_limit() is None
    assert memory.out_of_memory_kills() == 0
