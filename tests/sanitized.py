"""`make test-asan` and `make test-tsan`: what runs on the builds that watch themselves.

python -m tests.sanitized {address,thread} BUILD

Native tests first, with a check for leaks; then what of the suite reaches native code, in a Python that has the
sanitizer's runtime loaded. Python and its packages are not built to be watched: what they leak at exit is theirs, so
leaks are not looked for there. Nothing is compiled or loaded like this but on Linux. Exit status 1 if anything failed.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

ALWAYS = {"OMP_NUM_THREADS": "1", "FEATHERBACK_OFFLINE": "1"}
ENVIRONMENT = {
    "address": {
        "ASAN_OPTIONS": "allocator_may_return_null=1:detect_stack_use_after_return=1:quarantine_size_mb=16",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",  # else small objects share blocks whose borders nobody watches
    },
    "thread": {"TSAN_OPTIONS": "second_deadlock_stack=1"},
}
NATIVE = {"address": ["kernel_test", "stress_test"], "thread": ["stress_test", "kernel_test"]}
SUITES = {
    "address": [
        "tests/engine/kernels",
        "tests/engine/formats",
        "tests/engine/host",
        "tests/engine/backend",
        "tests/optim",
        "tests/methods/test_exact_gradients.py",
        "tests/methods/test_bf16.py",
        "tests/methods/test_freed_memory.py",
        "tests/infer/test_decoder.py",
        "tests/data/test_text_encoder.py",
        "tests/test_hostile_sizes.py",
    ],
    "thread": ["tests/engine/host", "tests/engine/kernels/test_threads.py", "tests/methods/test_freed_memory.py"],
}
FUZZED = {"address": ["gguf", "safetensors", "tokenizergguf", "adapterweights", "changing"], "thread": []}
FUZZING = ["--cases", "60", "--seed", "1"]


def main(kind: str, build: str) -> int:
    environment = os.environ | ALWAYS | ENVIRONMENT[kind]
    failed = [name for name in NATIVE[kind] if not passes(kind, [f"{build}/{name}"], environment)]
    environment["LD_PRELOAD"] = runtime(kind)
    environment["ASAN_OPTIONS"] = f"detect_leaks=0:{environment.get('ASAN_OPTIONS', '')}"
    python = [sys.executable, "-m"]
    # --capture=sys: what a sanitizer says as it ends the process must not end in pytest's own file.
    if not passes(kind, [*python, "pytest", "--capture=sys", "-m", "not memory_figures", *SUITES[kind]], environment):
        failed.append("tests")
    if FUZZED[kind] and not passes(kind, [*python, "tests.fuzz", *FUZZING, *FUZZED[kind]], environment):
        failed.append("fuzz")
    print(f"{kind} sanitizer: {'FAILED: ' + ', '.join(failed) if failed else 'all passed'}")
    return 1 if failed else 0


def passes(kind: str, command: Sequence[str], environment: Mapping[str, str]) -> bool:
    print("$", *command, flush=True)
    return subprocess.run([*fixed_addresses(kind), *command], env=environment, check=False).returncode == 0


def fixed_addresses(kind: str) -> list[str]:
    """What a command begins with so that its addresses are where the thread sanitizer expects them, if we may."""
    prefix = ["setarch", "-R"]
    if kind != "thread" or subprocess.run([*prefix, "true"], stderr=subprocess.DEVNULL, check=False).returncode:
        return []
    return prefix


def runtime(kind: str) -> str:
    """What must be loaded before all others: the sanitizer's library of the compiler that built the extension, and
    C++'s, whose exceptions it looks up as it starts: Python itself brings none."""
    extension = importlib.util.find_spec("featherback._native")  # which cannot be imported without them
    assert extension is not None
    assert extension.origin is not None
    listed = subprocess.run(["ldd", extension.origin], capture_output=True, text=True, check=True).stdout
    paths = [line.split()[2] for line in listed.splitlines() if "=> /" in line]
    sanitizer = [path for path in paths if {"address": "asan", "thread": "tsan"}[kind] in path]
    assert sanitizer, f"{extension.origin} is not built with the {kind} sanitizer:\n{listed}"
    return ":".join(sanitizer + [path for path in paths if "c++" in path])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
