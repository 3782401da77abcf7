"""All interleavings of a caller and two workers in the protocol of `csrc/core/thread_pool.cpp`.

The model has the same words and the same atomic steps as the code. It runs two jobs one after the other and then stops
the workers. Its memory is sequentially consistent; `make test-tsan` checks the order of memory accesses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

UNITS = (2, 3)  # of each job
WORKERS = 2
STOP = -1


@dataclass(frozen=True)
class Thread:
    """Where a thread is, and its variables."""

    at: str
    left: int = 0  # as it read it
    taken: int = 0
    job: int | None = None  # what the fault "job read before a unit is taken" remembers


@dataclass(frozen=True)
class State:
    """The words of the pool, and all threads: the caller first."""

    left: int = 0
    open: int = 0
    caller_sleeps: bool = False  # kAsleep
    sleeping: int = 0
    job: int = -1
    computed: frozenset[tuple[int, int]] = frozenset()
    threads: tuple[Thread, ...] = field(default=(Thread("begin"), *[Thread("take")] * WORKERS))


class ProtocolError(AssertionError):
    """An interleaving ends with a wrong result."""


def steps(state: State, fault: str) -> Iterator[State]:
    """Every state that one step of one thread leads to."""
    for who, thread in enumerate(state.threads):
        yield from (_step_caller if who == 0 else _step_worker)(state, who, thread, fault)


def _with(state: State, who: int, thread: Thread, **words: object) -> State:
    threads = (*state.threads[:who], thread, *state.threads[who + 1 :])
    return replace(state, threads=threads, **words)  # type: ignore[arg-type]


def _woken(state: State, sleeper: str, count: int) -> Iterator[State]:
    """Wake that many threads that sleep at `sleeper`, or all if there are fewer: every choice of them."""
    asleep = [who for who, thread in enumerate(state.threads) if thread.at == sleeper]
    if not asleep or not count:
        yield state
        return
    for who in asleep:
        yield from _woken(_with(state, who, replace(state.threads[who], at=f"woken {sleeper}")), sleeper, count - 1)


def _step_caller(state: State, who: int, me: Thread, fault: str) -> Iterator[State]:
    match me.at:
        case "begin" if state.job + 1 == len(UNITS):
            yield from _woken(_with(state, who, Thread("end"), left=STOP), "asleep", WORKERS)
        case "begin":
            yield _with(state, who, Thread("open"), job=state.job + 1)
        case "open":
            yield _with(state, who, Thread("publish"), open=UNITS[state.job], caller_sleeps=False)
        case "publish":
            yield _with(state, who, Thread("wake"), left=UNITS[state.job])
        case "wake":
            count = min(state.sleeping, UNITS[state.job] - 1)
            yield from _woken(_with(state, who, Thread("take")), "asleep", count)
        case "wait":
            if state.open == 0 or fault == "waits for units, not for reports":
                yield from _ended(state, who)
            yield _with(state, who, Thread("look"), caller_sleeps=True)
        case "look" | "woken caller asleep":
            yield _with(state, who, Thread("sleep", left=state.open))
        case "sleep" if me.left == 0:
            yield from _ended(state, who)
        case "sleep":  # the system compares and lets the thread sleep in one step
            yield _with(state, who, Thread("caller asleep" if state.open == me.left else "look"))
        case _:
            yield from _drain(state, who, me, fault)


def _ended(state: State, who: int) -> Iterator[State]:
    if {unit for job, unit in state.computed if job == state.job} != set(range(UNITS[state.job])):
        raise ProtocolError("a job ended before its units")
    yield _with(state, who, Thread("begin"))


def _step_worker(state: State, who: int, me: Thread, fault: str) -> Iterator[State]:
    match me.at:
        case "wait" if state.left == STOP:
            yield _with(state, who, Thread("end"))
        case "wait" if state.left:
            yield _with(state, who, Thread("take"))
        case "wait":
            counted = fault != "sleeps before it is counted"
            yield _with(state, who, Thread("sleep"), sleeping=state.sleeping + counted)
        case "sleep" if state.left and fault != "sleeps without a look":
            yield _with(state, who, Thread("woken asleep"))
        case "sleep":
            counted = fault == "sleeps before it is counted"
            yield _with(state, who, Thread("count" if counted else "asleep"))
        case "count":
            yield _with(state, who, Thread("asleep"), sleeping=state.sleeping + 1)
        case "woken asleep":
            yield _with(state, who, Thread("take"), sleeping=state.sleeping - 1)
        case _:
            yield from _drain(state, who, me, fault)


def _drain(state: State, who: int, me: Thread, fault: str) -> Iterator[State]:
    match me.at:
        case "take" if state.left in (0, STOP):
            yield _with(state, who, Thread("report" if me.taken else "wait", taken=me.taken))
        case "take":
            yield _with(state, who, replace(me, at="exchange", left=state.left, job=state.job))
        case "exchange" if fault == "takes without a comparison":
            yield _with(state, who, replace(me, at="compute"), left=state.left - 1)
        case "exchange" if state.left != me.left:
            yield _with(state, who, replace(me, at="take"))
        case "exchange":
            yield _with(state, who, replace(me, at="compute"), left=state.left - 1)
        case "compute":
            job = me.job if fault == "reads the job before it takes a unit" else state.job
            assert job is not None
            unit = UNITS[job] - me.left
            if (job, unit) in state.computed or unit < 0 or job != state.job:
                raise ProtocolError("a unit was computed twice, or for a job that had ended")
            taken = replace(me, at="take", taken=me.taken + 1)
            yield _with(state, who, taken, computed=state.computed | {(job, unit)})
        case "report":
            now = _with(state, who, Thread("wait"), open=state.open - me.taken)
            wakes = now.open == 0 and state.caller_sleeps and fault != "the last report wakes nobody"
            yield from _woken(now, "caller asleep", int(wakes))


def explore(fault: str = "") -> int:
    """Visit every state. Raises ProtocolError if one is wrong, or if threads sleep for ever."""
    start = State()
    seen, waiting = {start}, [start]
    while waiting:
        state = waiting.pop()
        following = list(steps(state, fault))
        if not following and any(thread.at != "end" for thread in state.threads):
            raise ProtocolError("threads sleep for ever")
        new = set(following) - seen
        seen |= new
        waiting += new
    return len(seen)


def test_every_interleaving_computes_each_unit_once_and_ends() -> None:
    assert explore() > 1000


@pytest.mark.parametrize(
    "fault",
    [
        "takes without a comparison",
        "reads the job before it takes a unit",
        "waits for units, not for reports",
        "sleeps without a look",
        "sleeps before it is counted",
        "the last report wakes nobody",
    ],
)
def test_a_planted_fault_is_found(fault: str) -> None:
    with pytest.raises(ProtocolError):
        explore(fault)


@dataclass(frozen=True)
class Mover:
    """A thread that moves a thread: another one that helps it, or itself."""

    to: int
    at: str = "begin"
    read: frozenset[int] = frozenset()


def affinities(locked: bool) -> set[frozenset[int]]:
    """Return where a thread may run after three calls of `Seat::move` at once, for all interleavings."""
    everywhere = frozenset({0, 1, 2})
    start = (everywhere, False, (Mover(0), Mover(0), Mover(1)))
    seen, waiting, found = {start}, [start], set()
    while waiting:
        mask, taken, movers = waiting.pop()
        if all(mover.at == "end" for mover in movers):
            found.add(mask)
        for who, mover in enumerate(movers):
            match mover.at:
                case "begin" if taken and locked:
                    after = mask, taken, replace(mover, at="end")
                case "begin":
                    after = mask, True, replace(mover, at="read")
                case "read":
                    after = mask, taken, replace(mover, at="narrow" if mover.to in mask else "clear", read=mask)
                case "narrow":
                    after = frozenset({mover.to}), taken, replace(mover, at="restore")
                case "restore":
                    after = mover.read, taken, replace(mover, at="clear")
                case "clear":
                    after = mask, False, replace(mover, at="end")
                case _:
                    continue
            following = (*after[:2], (*movers[:who], after[2], *movers[who + 1 :]))
            if following not in seen:
                seen.add(following)
                waiting.append(following)
    return found


def test_a_thread_that_was_moved_may_run_where_it_could() -> None:
    assert affinities(locked=True) == {frozenset({0, 1, 2})}


def test_a_thread_that_two_move_at_once_is_found() -> None:
    assert len(affinities(locked=False)) > 1
