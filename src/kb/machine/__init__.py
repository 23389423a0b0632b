"""The machine kb runs on: GPUs, the container's memory limit, /dev/shm, CPUs."""
