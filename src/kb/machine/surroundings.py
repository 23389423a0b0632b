"""Whether this process runs in a container or under WSL, which change what the driver shows and what mends it."""

import os

from kb.machine.cgroup import mounts, read_text

# Docker and Podman leave these.
_CONTAINER_FILES = (".dockerenv", "run/.containerenv")
_CONTAINER_MARKS = ("/docker/", "/docker-", "/kubepods", "/libpod", "/containerd", "/lxc/", "/crio-")
# Every runtime, Kubernetes' too, mounts these files of its own into the container.
_CONTAINER_MOUNTS = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf")
# PROC_PID_INIT_INO of the kernel: the number of the namespace that the host's own processes are in.
_HOST_PIDS = "pid:[4026531836]"


def in_wsl(root: str = "/") -> bool:
    """Whether the kernel is the one that Microsoft builds for WSL."""
    return "microsoft" in (read_text(os.path.join(root, "proc/version")) or "").lower()


def in_container(root: str = "/") -> bool:
    """Whether a container's runtime left its marks; some leave none."""
    if any(os.path.exists(os.path.join(root, name)) for name in _CONTAINER_FILES):
        return True
    groups = read_text(os.path.join(root, "proc/self/cgroup")) or ""
    points = {mount.point for mount in mounts(root)}
    return any(mark in groups for mark in _CONTAINER_MARKS) or not points.isdisjoint(_CONTAINER_MOUNTS)


def sees_host_processes(root: str = "/") -> bool:
    """Whether process numbers here are the host's, in which the driver counts."""
    try:
        return os.readlink(os.path.join(root, "proc/self/ns/pid")) == _HOST_PIDS
    except OSError:
        return False
