"""`python -m benchmarks job`: a chat fine-tune from command to adapter, beside transformers + PEFT.

Both open the model, prepare the same chats, measure the held-out loss before and after, and do the same steps: the same
examples in each, at the same learning rate. PEFT pads them to the longest of the step.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

from benchmarks import watch
from benchmarks.markdown import number, table
from benchmarks.peers import require_torch
from featherback.data.demo import HELD_OUT, TRAIN, pairs
from featherback.data.packing import rows
from featherback.data.token_file import TokenFile
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.engine import kernels
from featherback.errors import FeatherbackError
from featherback.runs.run_directory import RunDirectory
from featherback.worker import ENDED

Say = Callable[[str], None]

PREFIX = 200  # tokens of the system prompt that examples share, at least
TRIAL = 2  # examples in a step, and steps, by which PEFT's settings are compared
SHARE = 10  # the budget of the second run: PEFT's peak divided by this


@dataclass(frozen=True)
class Chats:
    """What is learnt, and how much at a time."""

    name: str
    train: Path
    held_out: Path
    seq_len: int
    batch_tokens: int


@dataclass(frozen=True)
class Job:
    """One job, measured from outside; its parts as its processes tell them. Times in seconds, memory in MB."""

    data: str
    what: str
    seconds: float  # from the command to the adapter
    prepare_seconds: float  # of these: text becomes tokens
    steps_seconds: float  # and: the steps
    tree_mb: float | None  # peak of all its processes, what they share counted once
    before: float  # held-out loss, nats per token
    after: float
    supervised: int  # tokens, in all steps

    @property
    def rest_seconds(self) -> float:
        """Imports, opening, planning, measuring the held-out loss, saving."""
        return self.seconds - self.prepare_seconds - self.steps_seconds


def run(model: str, cache: Path, steps: int, quick: bool, say: Say) -> dict[str, Any]:
    """The jobs on the demo's chats and on the same with a long system prompt; `quick`: the latter alone, against one
    setting of PEFT.

    FeatherbackError if the two sides did not train on as many tokens.
    """
    from featherback.models.hub.locate import locate

    require_torch()
    cache.mkdir(parents=True, exist_ok=True)
    path = locate(model)
    with tempfile.TemporaryDirectory(dir=cache, prefix="bench-") as place:
        folder = Path(place)
        unpacked = path if path.is_dir() else folder / "unpacked"
        if unpacked != path:
            say("unpacking the model for transformers")
            unpack(path, unpacked)
        # PyTorch emulates bf16 where the CPU does not multiply it: a step then takes many times as long.
        dtype = "bf16" if any("bf16" in name for name in kernels.available()) else "fp32"
        jobs: list[Job] = []
        for chats in [*([] if quick else [demo_chats()]), shared_prefix(path, folder)]:
            for job in _compared(path, unpacked, dtype, chats, folder, steps, quick):
                say(" ".join(_line(job, None)))
                jobs.append(job)
    return {"jobs": [asdict(job) for job in jobs], "markdown": markdown(jobs)}


def unpack(gguf: Path, folder: Path) -> None:
    """Write the model of a GGUF file as a Hugging Face folder."""
    command = [sys.executable, "-m", "benchmarks.peft_job", "unpack", str(gguf), str(folder)]
    watch.run(command, interval=watch.RARELY)


def demo_chats() -> Chats:
    """The demo's 200 requests and commands, a few in each step."""
    return Chats("demo", TRAIN, HELD_OUT, 256, 256)


def shared_prefix(model: Path, folder: Path) -> Chats:
    """The demo's chats behind a system prompt of `PREFIX` tokens or a few more, written into `folder`.

    It explains the task by as many of the demo's examples as that takes.
    """
    tokenizer, system = load_tokenizer(model), "You answer each request with one shell command. Examples:"
    for request, command in pairs(TRAIN):
        if len(tokenizer.encode(system)) >= PREFIX:
            break
        system += f"\n{request}: {command}"
    longest = 0
    for source in (TRAIN, HELD_OUT):
        with (folder / source.name).open("w", encoding="utf-8") as file:
            for request, command in pairs(source):
                turns = [("system", system), ("user", request), ("assistant", command)]
                messages = [{"role": role, "content": content} for role, content in turns]
                file.write(json.dumps({"messages": messages}) + "\n")
                longest = max(longest, len(tokenizer.encode("".join(text for _, text in turns))))
    # A chat's control tokens take a few more.
    seq_len = longest + 64
    return Chats("shared prefix", folder / TRAIN.name, folder / HELD_OUT.name, seq_len, 8 * seq_len)


def _compared(
    path: Path, unpacked: Path, dtype: str, chats: Chats, folder: Path, steps: int, quick: bool
) -> Iterator[Job]:
    """Our job; PEFT's, with or without checkpointing; ours with a share of the memory of that."""
    ours, request, supervised = train_ours(path, chats, folder, steps)
    yield ours
    request |= {"model": str(unpacked), "data": str(chats.train), "held_out": str(chats.held_out)}
    request |= {"dtype": dtype, "checkpointing": quick or _with_checkpointing({**request, "dtype": dtype}, folder)}
    theirs = train_peft(chats, request, folder, supervised)
    yield theirs
    if not quick and theirs.tree_mb is not None:
        budget = f"{max(theirs.tree_mb / SHARE, request['least_mb']):.0f}MB"
        yield train_ours(path, chats, folder, steps, memory=budget)[0]


def _with_checkpointing(request: dict[str, Any], folder: Path) -> bool:
    """Whether that makes PEFT's step faster."""
    short = {
        **request,
        "groups": [request["groups"][0][:TRIAL]] * TRIAL,
        "rates": request["rates"][:1] * TRIAL,
        "evaluated": 1,
    }
    with_it, without = (
        min(_peft({**short, "checkpointing": checkpointing}, folder)[0]["seconds"]) for checkpointing in (True, False)
    )
    return with_it < without


def train_ours(
    model: Path, chats: Chats, folder: Path, steps: int, **flags: Any
) -> tuple[Job, dict[str, Any], list[int]]:
    """`featherback train`; what PEFT needs to know to do the same; the supervised tokens of each step."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        out = Path(place) / "run"
        named = {
            "data": chats.train,
            "eval_data": chats.held_out,
            "out": out,
            "seq_len": chats.seq_len,
            "batch_tokens": chats.batch_tokens,
            "steps": steps,
            "eval_every": steps,
            "samples": 0,
            "keep": "last",  # PEFT has no other
            **flags,
        }
        words = [f"--{name.replace('_', '-')}={value}" for name, value in named.items()]
        command = [sys.executable, "-m", "featherback", "train", str(model), "--json", *words]
        outcome = watch.run(command, interval=watch.RARELY, tree=True, ends=ENDED)
        record = RunDirectory.open(out)
        request, supervised = same_steps(record, steps)
        summary, plan = record.record["summary"], record.plan
        data = record.record["data"]
    what = f"Featherback {plan.compute}" + (f", --memory {flags['memory']}" if flags else "")
    prepare_seconds = sum(data[name]["seconds"] for name in ("train", "eval"))
    job = Job(
        chats.name,
        what,
        outcome.seconds,
        prepare_seconds,
        summary["seconds"],
        outcome.tree_mb,
        summary["first_eval_loss"],
        summary["final_eval_loss"],
        sum(supervised),
    )
    return job, request, supervised


def same_steps(run: RunDirectory, steps: int) -> tuple[dict[str, Any], list[int]]:
    """What PEFT needs to know to do the steps that a run did; the supervised tokens of each."""
    config = run.config
    tokens = TokenFile(run.tokens / "train.tokens")
    epochs = (rows(tokens, config.batching, config.seed, epoch) for epoch in count())
    groups = [row.tolist() for row in islice(chain.from_iterable(epochs), steps)]
    supervised = [sum(int(tokens.seq(i)[1][1:].sum()) for i in group) for group in groups]
    request = {
        "groups": groups,
        "rates": [line["lr"] for line in run.metrics()],
        "rank": config.form.options["rank"],
        "alpha": config.form.options["alpha"],
        "weight_decay": config.optimizer_options["weight_decay"],
        "max_grad_norm": config.clip_norm,
        "threads": kernels.default_threads(),
        "least_mb": run.plan.least_mb,
    }
    return request, supervised


def train_peft(chats: Chats, request: dict[str, Any], folder: Path, supervised: list[int]) -> Job:
    """transformers + PEFT on the same; FeatherbackError if its steps had not so many `supervised` tokens."""
    found, outcome = _peft(request, folder)
    if found["supervised"] != supervised:
        raise FeatherbackError(
            f"The two sides did not train on the same tokens: {supervised} of ours and {found['supervised']} of PEFT's "
            f"are supervised, step by step."
        )
    what = f"PEFT {request['dtype']}" + (", checkpointing" if request["checkpointing"] else "")
    before, after = found["held_out"]
    return Job(
        chats.name,
        what,
        outcome.seconds,
        found["prepare_seconds"],
        sum(found["seconds"]),
        outcome.tree_mb,
        before,
        after,
        sum(supervised),
    )


def _peft(request: dict[str, Any], folder: Path) -> tuple[dict[str, Any], watch.Outcome]:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        file = Path(place) / "request.json"
        file.write_text(json.dumps({**request, "out": str(Path(place) / "adapter")}))
        command = [sys.executable, "-m", "benchmarks.peft_job", str(file)]
        outcome = watch.run(command, interval=watch.RARELY, tree=True)
    found: dict[str, Any] = json.loads(outcome.output.splitlines()[-1])
    return found, outcome


def markdown(jobs: list[Job]) -> str:
    """A table; PEFT's time and memory relative to ours in the last columns."""
    head = ["data", "what", "s", "preparing", "steps", "rest", "MB", "before", "after", "PEFT's s", "PEFT's MB"]
    peers = {job.data: job for job in jobs if job.what.startswith("PEFT")}
    return table(head, [_line(job, peers[job.data]) for job in jobs])


def _line(job: Job, peer: Job | None) -> list[str]:
    parts = (job.seconds, job.prepare_seconds, job.steps_seconds, job.rest_seconds)
    words = [job.data, job.what, *(number(seconds) for seconds in parts), number(job.tree_mb, 0)]
    words += [number(job.before, 3), number(job.after, 3)]
    if peer is not None:
        words.append(f"{peer.seconds / job.seconds:.2f}x")
        words.append(f"{peer.tree_mb / job.tree_mb:.1f}x" if peer.tree_mb and job.tree_mb else "-")
    return words
