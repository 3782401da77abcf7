"""Control groups of Linux, with which containers limit what a process can use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROC, GROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def folders(controller: str, proc: Path = PROC, groups: Path = GROUPS) -> Iterator[tuple[Path, int]]:
    """Yield the folder of this process's cgroup for a controller, and those around it, with the version (1 or 2)."""
    for line in lines(proc / "self" / "cgroup"):  # hierarchy:controllers:/path
        if line.count(":") < 2:
            continue
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, version = groups, 2
        elif controller in controllers.split(","):
            root, version = groups / controller, 1
        else:
            continue
        # In a container the path can be that of the host, of which only the root is visible.
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            yield folder, version
            if folder == root:
                break


def lines(path: Path) -> Iterator[str]:
    """Yield the lines of a system file; none if the system has no such file."""
    with suppress(OSError), path.open(errors="replace") as file:
        yield from map(str.rstrip, file)
