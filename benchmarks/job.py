"""A chat fine-tune from command to adapter, beside transformers + PEFT.

Both open the model, prepare the same chats, measure the held-out loss before and after, and do the same steps: the same
examples in each, at the same learning rate. PEFT pads them to the longest of the step.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import watch
from benchmarks.peers import require_torch
from featherback.data.demo import HELD_OUT, TRAIN, pairs
from featherback.data.packing import rows as packed_rows
from featherback.data.token_file import TokenFile
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.engine import kernels
from featherback.errors import FeatherbackError
from featherback.runs.run_directory import RunDirectory
from featherback.worker import ENDED

if TYPE_CHECKING:
    from benchmarks.place import Place
    from benchmarks.results import Row

STEPS = {"demo": 40, "prefix": 4}
PREFIX = 200  # tokens of the system prompt that examples share, at least
TRIAL = 2  # examples in a step, and steps, by which PEFT's settings are compared
SHARE = 10  # the budget of the second run: PEFT's peak divided by this


@dataclass(frozen=True)
class Chats:
    """The data of a job, and the sizes of its batches."""

    name: str
    train: Path
    held_out: Path
    seq_len: int
    batch_tokens: int


@dataclass(frozen=True)
class Job:
    """One job: total time and memory as seen from outside, its parts as its processes report them. Seconds and MB."""

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

    def to_json(self) -> dict[str, Any]:
        """The fields, rounded, and `rest_s`."""
        times = {
            "job_s": self.seconds,
            "prepare_s": self.prepare_seconds,
            "steps_s": self.steps_seconds,
            "rest_s": self.rest_seconds,
        }
        losses = {"before": round(self.before, 4), "after": round(self.after, 4), "supervised": self.supervised}
        rounded = {key: round(value, 2) for key, value in times.items()}
        tree = None if self.tree_mb is None else round(self.tree_mb, 1)
        return {"what": self.what, **rounded, "tree_mb": tree, **losses}


def rows(place: Place) -> dict[str, Callable[[], Row]]:
    """The demo's chats, and the same with a long system prompt: ours, PEFT's, and ours in a share of PEFT's memory."""
    return {f"chats-{name}": partial(_row, name, steps, place) for name, steps in STEPS.items()}


def _row(name: str, steps: int, place: Place) -> Row:
    sides = ("ours", "peft", "ours-tenth")
    jobs = compare(place.chat_model, name, place.folder, place.steps(steps), place.tiny)
    return {"steps": place.steps(steps), **{side: job.to_json() for side, job in zip(sides, jobs)}}


def compare(model: str, name: str, cache: Path, steps: int, quick: bool = False) -> list[Job]:
    """The jobs on the chats called `name` ("demo" or "prefix"). `quick`: without the third, and one setting of PEFT.

    FeatherbackError if the two sides did not train on the same number of tokens.
    """
    from featherback.models.hub.locate import locate

    require_torch()
    path = locate(model)
    with tempfile.TemporaryDirectory(dir=cache, prefix="bench-") as place:
        folder = Path(place)
        unpacked = path if path.is_dir() else folder / "unpacked"
        if unpacked != path:
            unpack(path, unpacked)
        # PyTorch emulates bf16 where the CPU does not multiply it: a step then takes many times as long.
        dtype = "bf16" if kernels.multiplies_bf16() else "fp32"
        chats = demo_chats() if name == "demo" else shared_prefix(path, folder)
        return list(_compared(path, unpacked, dtype, chats, folder, steps, quick))


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
    """Whether gradient checkpointing makes PEFT's step faster."""
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
    """`featherback train`; and what PEFT needs to do the same steps, and the supervised tokens of each step."""
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
        summary, plan = record.record.summary, record.plan
        data = record.record.data
    what = f"Featherback {plan.compute}" + (f", --memory {flags['memory']}" if flags else "")
    prepare_seconds = sum(data[name].seconds for name in ("train", "eval"))
    job = Job(
        chats.name,
        what,
        outcome.seconds,
        prepare_seconds,
        summary.seconds,
        outcome.tree_mb,
        summary.first_eval_loss,
        summary.final_eval_loss,
        sum(supervised),
    )
    return job, request, supervised


def same_steps(run: RunDirectory, steps: int) -> tuple[dict[str, Any], list[int]]:
    """What PEFT needs to know to do the steps that a run did; the supervised tokens of each."""
    config = run.config
    tokens = TokenFile(run.tokens / "train.tokens")
    epochs = (packed_rows(tokens, config.batching, config.seed, epoch) for epoch in count())
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
