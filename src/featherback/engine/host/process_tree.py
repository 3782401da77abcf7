"""The memory of a process and its descendants, as the system reports it (Linux: /proc)."""

from __future__ import annotations

from collections.abc import Iterator


def tree_pss(pid: int) -> int:
    """Return the bytes that a process and its descendants hold, with shared memory counted once; 0 if unknown."""
    return sum(sizes(process, "smaps_rollup").get("Pss", 0) for process in tree(pid))


def tree_unshared_rss(pid: int) -> int:
    """Return the bytes of a process and its descendants, as if no other program shared their files; 0 if unknown.

    Other programs hardly affect this number.
    """
    anonymous, files = 0, dict[str, int]()
    for process in tree(pid):
        own_anonymous, own_files = _mapped(process)
        anonymous += sizes(process, "smaps_rollup").get("Pss_Anon", own_anonymous)  # forked processes share some
        for name, size in own_files.items():  # processes of one program touch the same parts of it
            files[name] = max(files.get(name, 0), size)
    return anonymous + sum(files.values())


def _mapped(pid: int) -> tuple[int, dict[str, int]]:
    """Return a process's bytes that belong to no file, and its file-backed bytes by file."""
    anonymous, files, name = 0, dict[str, int](), ""
    try:
        lines = _text(f"/proc/{pid}/smaps").splitlines()
    except OSError:
        return 0, {}
    for line in lines:
        words = line.split(None, 5)
        if words[0] == "Rss:":
            files[name] = files.get(name, 0) + int(words[1]) * 1024
        elif words[0] == "Anonymous:":
            files[name] -= int(words[1]) * 1024
            anonymous += int(words[1]) * 1024
        elif not words[0].endswith(":"):  # a mapping's first line
            name = words[5] if len(words) > 5 else ""
    return anonymous, files


def tree(pid: int) -> Iterator[int]:
    """Yield a process and its descendants, except those about to become another program: they share its memory."""
    yield pid
    own = _command(pid)
    try:
        children = _text(f"/proc/{pid}/task/{pid}/children").split()
    except OSError:
        return
    for child in map(int, children):
        if _command(child) != own:
            yield from tree(child)


def _command(pid: int) -> str | None:
    """Return the process's command line and name, or None if the process is gone."""
    try:
        return _text(f"/proc/{pid}/cmdline") + _text(f"/proc/{pid}/comm")
    except OSError:
        return None


def sizes(pid: int, file: str = "status") -> dict[str, int]:
    """Return the sizes in /proc/PID/FILE in bytes, by name; empty if the process is gone or there is no /proc."""
    try:
        lines = _text(f"/proc/{pid}/{file}").splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        name, _, rest = line.partition(":")
        if rest.endswith(" kB"):
            found[name] = int(rest.split()[0]) * 1024
    return found


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
