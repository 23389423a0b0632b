"""Whether this process runs in a container or under WSL, which change what the driver shows and what mends it."""

import os

from kb.machine.cgroup import read_text

# Docker and Podman leave these; Kubernetes' runtimes leave only the mount of their overlay.
_CONTAINER_FILES = (".dockerenv", "run/.containerenv")
_CONTAINER_MARKS = ("/docker/", "/docker-", "/kubepods", "/libpod", "/containerd", "/lxc/", "/crio-")
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
    mounts = (read_text(os.path.join(root, "proc/self/mountinfo")) or "").splitlines()
    whole = next((line for line in mounts if len(line.split(" ")) > 4 and line.split(" ")[4] == "/"), "")
    return any(mark in groups for mark in _CONTAINER_MARKS) or " - overlay " in whole


def sees_host_processes(root: str = "/") -> bool:
    """Whether process numbers here are the host's, in which the driver counts."""
    try:
        return os.readlink(os.path.join(root, "proc/self/ns/pid")) == _HOST_PIDS
    except OSError:
        return False
