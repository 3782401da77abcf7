"""Time to the first token of a prompt whose beginning an earlier server has computed, with and without --prefix-cache.

    python -m benchmarks.restart MODEL [--tokens 2000] [--rounds 3] [--threads 1]

A server computes a prompt and keeps it in files. Then, in turns, a new server with these files and a new server without
them answer the same prompt with another question behind it. The table has the processor time of each server between the
request and its first token, and the time on the clock; the ratio is that of the least times.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np


def answered(model: str, options: list[str], prompt: list[int]) -> tuple[float, float, int]:
    """Ask a new server for one token. Return processor and clock seconds, and how many tokens were known."""
    command = [sys.executable, "-m", "featherback", "serve", model, "--port", "0", *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    url = ""
    for line in server.stdout:
        if line.startswith("Serving on "):
            url = line.split()[-1]
        if "Ctrl-C" in line:
            break
    try:
        ask(url, prompt[:4])  # code that is loaded on first use
        before, began = cpu(server.pid), time.perf_counter()
        usage = ask(url, prompt)
        times = cpu(server.pid) - before, time.perf_counter() - began
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()
        server.stdout.close()
    return *times, usage["prompt_tokens_details"]["cached_tokens"]


def ask(url: str, prompt: list[int]) -> dict[str, dict[str, int]]:
    """Ask for one token and return the usage."""
    body = json.dumps({"prompt": prompt, "max_tokens": 1, "temperature": 0}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/completions", body)) as answer:
        found: dict[str, dict[str, int]] = json.load(answer)["usage"]
    return found


def cpu(process: int) -> float:
    """Return the processor seconds of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", default="1")
    given = parser.parse_args()
    ids = np.random.default_rng(0).integers(1000, 20000, given.tokens + 40).tolist()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        plain = ["--threads", given.threads, "--context", str(given.tokens + 48)]
        kept = [*plain, "--prefix-cache", folder]
        answered(given.model, kept, ids[: given.tokens + 10])
        rows = {"without": [], "with": []}  # type: dict[str, list[tuple[float, float, int]]]
        for number in range(given.rounds):
            prompt = [*ids[: given.tokens], *ids[given.tokens + 10 + number : given.tokens + 20 + number]]
            rows["without"].append(answered(given.model, plain, prompt))
            rows["with"].append(answered(given.model, kept, prompt))
    print("| --prefix-cache | processor s | s | tokens known |\n|---|---:|---:|---:|")
    least = {}
    for name, found in rows.items():
        least[name] = min(each[0] for each in found), min(each[1] for each in found)
        print(f"| {name} | {least[name][0]:.2f} | {least[name][1]:.2f} | {found[-1][2]} |")
    ratios = [one / other for one, other in zip(least["without"], least["with"])]
    print(f"Without / with: {ratios[0]:.1f} (processor), {ratios[1]:.1f} (clock)")


if __name__ == "__main__":
    main()
