"""Federations in one process, with Flower's messages, strategies and protections. `make test-flower` runs this."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, RecordDict

from featherback.errors import FeatherbackError
from featherback.exports import FORMATS, formats
from featherback.federated import fit, messages, rounds
from featherback.federated.server import Server
from featherback.federated.settings import Federation
from featherback.federated.strategies import STRATEGIES
from featherback.federated.strategies.base import Arrays
from tests.federated.in_process import InProcess, Node, Place, run_here
from tests.support.tiny_chat import write_tiny_chat
from tests.support.tiny_models import TINY_QWEN3, tiny, write_tiny

Answer = Callable[[Message], Message | None]


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train and evaluate here: tests/federated/test_fit.py covers the processes."""
    monkeypatch.setattr(fit, "_run", run_here)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def _saved(place: Place, number: int) -> Arrays:
    from safetensors.numpy import load_file

    return load_file(rounds.folder(place.folder / "out", number) / "adapter_model.safetensors")


def _answered(node: Node, change: Callable[[dict[str, np.ndarray]], Any] | None = None, **measures: float) -> None:
    """Let a node change the tensors and measures of its answers to training."""
    answer = node.answer

    def wrong(message: Message) -> Message | None:
        found = answer(message)
        if found is not None and message.metadata.message_type == "train" and not found.has_error():
            arrays = messages.arrays_of(found)
            if change is not None:
                change(arrays)
            found.content["arrays"] = ArrayRecord({name: Array(each) for name, each in arrays.items()})
            (record,) = found.content.metric_records.values()
            record.update(measures)
        return found

    node.answer = wrong  # type: ignore[method-assign]


def _server(place: Place, **options: Any) -> tuple[Server, InProcess]:
    config = place.run_config(**options)
    return Server(Federation.of(config)), InProcess(place.nodes(config))


def test_fedavg_is_the_mean_weighted_by_supervised_tokens(place: Place) -> None:
    server, grid = _server(place, rounds=1)
    start, sent = server.adapter.state(), {}

    def remember(number: int, node: Node) -> None:
        answer = node.answer

        def kept(message: Message) -> Message | None:
            found = answer(message)
            if found is not None and message.metadata.message_type == "train":
                tensors = server.pieces.unpack(messages.arrays_of(found))
                sent[number] = tensors, messages.measures_of(found)["tokens"]
            return found

        node.answer = kept  # type: ignore[method-assign]

    for number, node in grid.nodes.items():
        remember(number, node)
    server.run(grid)
    (one, a), (other, b) = sent.values()
    assert a != b
    mean = server.adapter.state()
    for name, each in mean.items():
        expected = (a * one[name].astype(np.float64) + b * other[name]) / (a + b)
        np.testing.assert_allclose(each, expected, rtol=1e-5, atol=1e-7)
        by_examples = (one[name] + other[name]) / 2
        if "lora_B" in name:  # a planted fault, weights that are not the tokens, is found
            assert np.abs(by_examples - expected).max() > 1e-5
    assert any(np.abs(mean[name] - start[name]).max() > 1e-3 for name in mean)


@pytest.mark.parametrize("strategy", STRATEGIES.names)
def test_every_strategy_learns_and_goes_on_after_the_server_was_killed(place: Place, strategy: str) -> None:
    options = {"strategy": strategy, "rounds": 3, "fedadam.eta": 0.01}
    whole, _ = place.run(**options)
    history = whole.last.history
    assert [entry["round"] for entry in history] == [1, 2, 3]
    assert history[-1]["eval_loss"] < history[0]["eval_loss"] + 0.05
    assert formats.detect(rounds.folder(place.folder / "out", 3)) is FORMATS["peft"]
    wanted = _saved(place, 3)
    place.forget()
    place.run(**{**options, "rounds": 2})
    server, grid = _server(place, **options)
    assert server.last.number == 2
    server.run(grid)
    for name, each in _saved(place, 3).items():
        np.testing.assert_allclose(each, wanted[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_steps_of_gradients_are_those_of_one_machine(place: Place) -> None:
    """Ten rounds equal ten steps with the gradient of both nodes' batches together."""
    import featherback as fb
    from featherback.federated.settings import Node as NodeOptions
    from featherback.federated.stepper import Stepper
    from featherback.models.adapter import Adapter

    options = {"strategy": "gradients", "rounds": 10, "train.batch_size": 2, "evaluate-every": 10, "save-every": 10}
    server, grid = place.run(**options)
    assert sorted(path.name for path in (place.folder / "out").iterdir()) == ["round-000000", "round-000010"]
    federation = Federation.of(place.run_config(**options))
    model = server.adapter.model
    config = federation.config(model)
    stepper, adapter = Stepper(model, config), Adapter(model, config.form, config.seed)
    values = adapter.state()
    for number in range(1, 11):
        batches = []
        for node in grid.nodes.values():
            own = NodeOptions.of(node.context.node_config, {})
            group = fit.batches(own, config, model, fit.Job(server.last.federation, number))
            batches += list(group.batches)
        tokens, labels = [], []
        for batch in batches:
            for a, b in zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True):
                tokens.append(batch.tokens[a:b].tolist())
                labels.append([-100, *batch.targets[a:b].tolist()[:-1]])
        adapter.load_state(values)
        _, gradient = fb.gradients(model, adapter, tokens, labels)
        values = stepper.step(values, gradient, config.peak_learning_rate)
    found = server.adapter.state()
    assert max(np.abs(found[name] - each).max() for name, each in values.items()) < 1e-5


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda arrays: next(iter(arrays.values())).fill(np.nan), "holds NaN or infinity"),
        (lambda arrays: arrays.update({next(iter(arrays)): np.zeros((1, 1), np.float32)}), "has the shape"),
        (lambda arrays: [np.multiply(each, np.float32(1e8), out=each) for each in arrays.values()], "its norm is"),
        (lambda arrays: arrays.pop(next(iter(arrays))), "is missing"),
    ],
    ids=["nan", "shape", "norm", "missing"],
)
def test_a_malicious_update_is_rejected_and_its_node_is_named(
    place: Place, change: Callable[[Arrays], Any], reason: str
) -> None:
    server, grid = _server(place, rounds=1)
    liar, sent = max(grid.nodes), dict[str, np.ndarray]()
    _answered(grid.nodes[liar], change)
    _answered(grid.nodes[min(grid.nodes)], sent.update)
    server.run(grid)
    (entry,) = server.last.history
    assert list(entry["nodes"]) == [str(min(grid.nodes))]
    assert list(entry["rejected"]) == [str(liar)]
    assert reason in entry["rejected"][str(liar)]
    for name, each in server.pieces.pack(server.adapter.state()):  # the mean is the honest node's update
        np.testing.assert_allclose(each, sent[name], rtol=1e-6, err_msg=name)


def test_a_nan_that_passes_is_a_fault_that_is_found(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from featherback.federated import updates

    monkeypatch.setattr(updates, "_problem", lambda *of: None)
    server, grid = _server(place, rounds=1)
    _answered(grid.nodes[max(grid.nodes)], lambda arrays: next(iter(arrays.values())).fill(np.nan))
    with pytest.raises(FeatherbackError, match="NaN"):  # the last check, before it is saved
        server.run(grid)
    assert rounds.newest(place.folder / "out") == rounds.folder(place.folder / "out", 0)


def _no_archive(found: Message) -> None:
    record = found.content.array_records["arrays"]
    first = next(iter(record))
    record[first] = Array("float32", record[first].shape, "numpy.ndarray", b"PK\x03\x04 and no archive")


def _no_record(found: Message) -> None:
    found.content = RecordDict()


def _no_number(found: Message) -> None:
    (record,) = found.content.metric_records.values()
    for name in record:
        record[name] = [1.0, 2.0]


def _huge_count(found: Message) -> None:
    (record,) = found.content.metric_records.values()
    record["tokens"] = 1e300


LIES = [
    *(("train", each) for each in (_no_archive, _no_record, _no_number, _huge_count, None)),
    *(("evaluate", each) for each in (_no_record, _no_number, _huge_count, None)),
]


@pytest.mark.parametrize(("kind", "wrong"), LIES)
def test_whatever_a_node_answers_the_run_goes_on(
    place: Place, kind: str, wrong: Callable[[Message], None] | None
) -> None:
    """`wrong` spoils an answer of this kind; None: the answer is a long error with control characters."""
    server, grid = _server(place, rounds=1)
    liar = max(grid.nodes)
    answer = grid.nodes[liar].answer

    def lie(message: Message) -> Message | None:
        found = answer(message)
        if message.metadata.message_type == kind and found is not None:
            if wrong is None:
                return Message(Error(messages.REFUSED, "\x1b[2J\n" + 100_000 * "x"), reply_to=message)
            wrong(found)
        return found

    grid.nodes[liar].answer = lie  # type: ignore[method-assign]
    server.run(grid)
    (entry,) = server.last.history
    rejected = entry["rejected"]
    assert list(rejected) == ([str(liar)] if kind == "train" else [])
    assert all(reason.isprintable() and len(reason) < 400 for reason in rejected.values())
    assert 0 < entry["eval_loss"] < 100
    assert entry["eval_tokens"] < 1 << 40


@pytest.mark.parametrize("claimed", [1 << 40, 1e12, 100_000, 5000])
def test_a_claimed_weight_does_not_decide_the_mean(place: Place, claimed: float) -> None:
    """The liar counts as four times the other node, the largest-weight, and the log and the history say so."""
    config = place.run_config(rounds=1)
    del config["train.steps"]  # a pass over each node's data, of whose size the server knows nothing
    server, grid = Server(Federation.of(config)), InProcess(place.nodes(config))
    liar, sent = max(grid.nodes), dict[int, dict[str, np.ndarray]]()
    for number, node in grid.nodes.items():
        _answered(node, lambda arrays, number=number: sent.update({number: dict(arrays)}))  # type: ignore[misc]
    _answered(grid.nodes[liar], None, tokens=claimed)
    server.run(grid)
    (entry,) = server.last.history
    measured = entry["nodes"]
    tokens = measured[str(min(grid.nodes))]["tokens"]
    assert (measured[str(liar)]["tokens"], measured[str(liar)]["weight"]) == (claimed, 4 * tokens)
    assert "weight" not in measured[str(min(grid.nodes))]
    for name, each in server.pieces.pack(server.adapter.state()):
        wanted = (sent[min(grid.nodes)][name] + 4 * sent[liar][name].astype(np.float64)) / 5
        np.testing.assert_allclose(each, wanted, rtol=1e-5, atol=1e-7, err_msg=name)


def test_a_weight_that_the_options_rule_out_is_rejected(place: Place) -> None:
    server, grid = _server(place, rounds=1, **{"train.seq-len": 64})
    assert server.most_tokens == 2 * 64
    _answered(grid.nodes[max(grid.nodes)], None, tokens=129)
    server.run(grid)
    (entry,) = server.last.history
    assert list(entry["nodes"]) == [str(min(grid.nodes))]
    assert "its weight is 129 supervised tokens; expected 1 to 128" in entry["rejected"][str(max(grid.nodes))]


@pytest.mark.parametrize(
    ("tokens", "loss", "least", "most"),
    [
        (1 << 40, 0.0, 0.19, 0.21),  # counts as four times the honest node: it can move the mean, not decide it
        (1e12, 99.0, 79.0, 80.0),
        (10, 1e30, 1.0, 1.0),
        (10, float("nan"), 1.0, 1.0),
        (10, -5.0, 1.0, 1.0),
        (0, 7.0, 1.0, 1.0),
        (-3, 7.0, 1.0, 1.0),
        (1e300, 7.0, 1.0, 1.0),
        (float("nan"), 7.0, 1.0, 1.0),
        (1, 7.0, 1.0, 3.0),  # next to no tokens: the honest node counts as four times that
    ],
)
def test_a_claimed_held_out_loss_does_not_decide_the_mean(
    place: Place, tokens: float, loss: float, least: float, most: float
) -> None:
    server, grid = _server(place, rounds=1)
    claims = {min(grid.nodes): (100, 1.0), max(grid.nodes): (tokens, loss)}
    for number, node in grid.nodes.items():
        _evaluated(node, *claims[number])
    server.run(grid)
    (entry,) = server.last.history
    assert least <= entry["eval_loss"] <= most
    assert entry["eval_tokens"] <= 500
    assert entry["eval_nodes"][str(min(grid.nodes))] == {"tokens": 100, "loss": 1.0}


def _evaluated(node: Node, tokens: float, loss: float) -> None:
    """Let a node claim a held-out loss."""
    answer = node.answer

    def measured(message: Message) -> Message | None:
        found = answer(message)
        if message.metadata.message_type == "evaluate" and found is not None:
            (record,) = found.content.metric_records.values()
            record.update({"tokens": tokens, "eval_loss": loss})
        return found

    node.answer = measured  # type: ignore[method-assign]


def test_the_held_out_loss_is_the_mean_over_all_tokens(place: Place) -> None:
    server, grid = _server(place, rounds=1)
    for number, claim in zip(sorted(grid.nodes), ((10, 1.0), (30, 2.0)), strict=True):
        _evaluated(grid.nodes[number], *claim)
    server.run(grid)
    (entry,) = server.last.history
    assert (entry["eval_loss"], entry["eval_tokens"]) == (1.75, 40)


def test_a_malformed_answer_under_secure_aggregation_costs_a_round_but_not_the_run(place: Place) -> None:
    server, grid = _server(place, privacy="secure-aggregation", rounds=1)
    liar = grid.nodes[max(grid.nodes)]
    answer, lies = liar.answer, iter([True])

    def lie(message: Message) -> Message | None:
        found = answer(message)
        if next(lies, False) and found is not None:
            _no_record(found)
        return found

    liar.answer = lie  # type: ignore[method-assign]
    server.run(grid)
    assert server.last.number == 1


def test_updates_wait_in_a_file_that_nobody_sees(place: Place) -> None:
    from featherback.federated.waiting import WaitingRoom

    sent = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.ones((4,), np.float32)}
    with WaitingRoom(place.folder) as room:
        before = sorted(place.folder.iterdir())
        one = room.keep(sent, ["a", "b"])
        other = room.keep({name: -each for name, each in sent.items()}, ["a", "b"])
        assert sorted(place.folder.iterdir()) == before
        assert list(one) == ["a", "b"]
        for name, each in sent.items():
            np.testing.assert_array_equal(one[name].numpy(), each)
            np.testing.assert_array_equal(other[name].numpy(), -each)


def test_a_full_disk_is_an_error_of_the_server_not_of_a_node(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from featherback.engine.host.positioned import write_at
    from featherback.federated import waiting

    def full(file: int, array: np.ndarray, offset: int) -> None:
        with Path("/dev/full").open("wb", buffering=0) as device:
            write_at(device.fileno(), array, offset)

    monkeypatch.setattr(waiting, "write_at", full)
    server, grid = _server(place, rounds=1)
    with pytest.raises(FeatherbackError, match="No space left on device"):
        server.run(grid)


@pytest.mark.parametrize("waiting", [True, False])
def test_the_mean_reads_one_tensor_at_a_time(place: Place, waiting: bool) -> None:
    """Eight updates of eight tensors of 1 MiB; not waiting in a file is the planted fault."""
    import tracemalloc

    from featherback.federated.waiting import WaitingRoom

    server, _ = _server(place, rounds=1)
    names = [f"{number}" for number in range(8)]
    answers = []
    tracemalloc.start()
    with WaitingRoom(place.folder) as room:
        for node in range(1, 9):
            update = {name: np.full(1 << 18, node, np.float32) for name in names}
            record = room.keep(update, names) if waiting else ArrayRecord({name: Array(update[name]) for name in names})
            answer = Message(RecordDict(), reply_to=Message(RecordDict(), node, "train"))
            answer.content = messages.needed(record, {"tokens": 1, "loss": 1.0})
            answers.append(answer)
        del update, record, answer
        mean, _ = server.strategy.aggregate_train(1, answers)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert mean is not None
    np.testing.assert_allclose(mean["7"].numpy(), 4.5, rtol=1e-6)
    assert (peak < 32 << 20) is waiting  # a mean, its bytes, and a few tensors; not eight updates of 8 MiB


def test_further_measures_of_a_node_do_not_confuse_the_strategy(place: Place) -> None:
    server, grid = _server(place, rounds=1)
    _answered(grid.nodes[max(grid.nodes)], None, surprise=1.0)
    server.run(grid)
    assert len(server.last.history[0]["nodes"]) == 2


def test_another_model_is_refused_in_one_sentence(place: Place) -> None:
    from tests.support.tiny_chat import N_VOCAB, byte_level_metadata

    other = write_tiny(
        place.folder / "other.gguf", tiny(TINY_QWEN3, vocab_size=N_VOCAB), metadata=byte_level_metadata()
    )
    server, grid = _server(place, rounds=1)
    stranger = max(grid.nodes)
    grid.nodes[stranger].context.node_config["model"] = str(other)
    server.run(grid)
    reason = server.last.history[0]["rejected"][str(stranger)]
    assert "This node's model is another one than the federation's" in reason
    assert reason.count(". ") == 0


def test_the_reason_of_a_failure_stays_on_the_node(place: Place) -> None:
    server, grid = _server(place, rounds=1)
    unlucky = max(grid.nodes)
    bad = place.folder / "private-notes.jsonl"
    bad.write_text('{"secret": "the patient is called Ana"}\n')
    grid.nodes[unlucky].context.node_config["data"] = str(bad)
    server.run(grid)
    reason = server.last.history[0]["rejected"][str(unlucky)]
    assert reason == "it failed: The node could not do its work; its own log says why."


def test_another_quantisation_joins(place: Place) -> None:
    from featherback.engine.formats.types import TensorType
    from tests.support.tiny_chat import N_VOCAB, byte_level_metadata
    from tests.support.tiny_models import TINY_LLAMA

    config = tiny(TINY_LLAMA, vocab_size=N_VOCAB)
    server, grid = _server(place, rounds=1)
    other = write_tiny(place.folder / "q8.gguf", config, TensorType.Q8_0, metadata=byte_level_metadata())
    grid.nodes[max(grid.nodes)].context.node_config["model"] = str(other)
    server.run(grid)
    assert len(server.last.history[0]["nodes"]) == 2


def test_a_node_that_dies_is_asked_again(place: Place) -> None:
    server, grid = _server(place, rounds=1)
    node = grid.nodes[max(grid.nodes)]
    answer, deaths = node.answer, iter([True, False])

    def dies_once(message: Message) -> Message | None:
        if message.metadata.message_type == "train" and next(deaths):
            return Message(Error(2, "the ClientApp has crashed"), reply_to=message)
        return answer(message)

    node.answer = dies_once  # type: ignore[method-assign]
    server.run(grid)
    assert len(server.last.history[0]["nodes"]) == 2
    assert server.last.history[0]["rejected"] == {}


def test_the_node_that_replaces_a_dead_one_does_its_work(place: Place) -> None:
    server, grid = _server(place, rounds=1)
    gone = max(grid.nodes)
    new = Node(99, place.folder, grid.nodes[gone].context.node_config, grid.nodes[gone].context.run_config)

    def dies(message: Message) -> Message | None:
        del grid.nodes[gone]
        grid.nodes[99] = new
        found = Message(Error(5, "Node Unavailable"), reply_to=message)
        found.metadata.__dict__["_src_node_id"] = 1  # the server answers in its place
        return found

    grid.nodes[gone].answer = dies  # type: ignore[method-assign]
    server.run(grid)
    assert "99" in server.last.history[0]["nodes"]
    assert list(server.last.history[0]["rejected"]) == [str(gone)]


def test_a_round_without_a_straggler_has_a_result(place: Place) -> None:
    server, grid = _server(place, rounds=1, timeout=0.1)
    grid.nodes[max(grid.nodes)].answer = lambda message: None  # type: ignore[method-assign]
    server.run(grid)
    assert list(server.last.history[0]["nodes"]) == [str(min(grid.nodes))]


def test_rounds_without_any_update_end_the_run(place: Place) -> None:
    server, grid = _server(place, rounds=2, timeout=0.1)
    for node in grid.nodes.values():
        node.answer = lambda message: None  # type: ignore[method-assign]
    with pytest.raises(FeatherbackError, match="Round 1 had no usable update in 3 attempts"):
        server.run(grid)
    assert rounds.newest(place.folder / "out") == rounds.folder(place.folder / "out", 0)


@pytest.mark.parametrize("privacy", ["central-dp", "local-dp", "secure-aggregation"])
def test_protected_federations_learn(place: Place, privacy: str) -> None:
    mild = {"central-dp.noise-multiplier": 1e-3, "local-dp.epsilon": 1e4}
    server, _ = place.run(privacy=privacy, rounds=2, **mild)
    history = server.last.history
    assert history[1]["eval_loss"] < history[0]["eval_loss"]


def _changed(place: Place, **options: Any) -> tuple[Server, np.ndarray]:
    """Run a round and return the server, and by how much the adapter has changed, shape (values,)."""
    server, grid = _server(place, rounds=1, **{"largest-update": 1e9, **options})
    start = server.adapter.state()
    server.run(grid)
    return server, np.concatenate([(each - start[name]).ravel() for name, each in server.adapter.state().items()])


NOISY = {  # noise of a mean of two nodes, in units of clipping-norm: per value, and for all of them
    "central-dp": ({"central-dp.noise-multiplier": 3.0}, 3.0 / 2),
    "local-dp": ({"local-dp.epsilon": 0.5}, 2 * (2 * np.log(1.25e5)) ** 0.5 / 0.5 / 2**0.5),
}


@pytest.mark.parametrize("privacy", NOISY)
def test_the_noise_is_what_the_options_promise(
    place: Place, privacy: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, expected = NOISY[privacy]
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    server, change = _changed(place, privacy=privacy, **options, **{f"{privacy}.clipping-norm": 1e-3})
    assert change.std() == pytest.approx(1e-3 * expected, rel=0.05)
    assert server.privacy.noise(change.size, 2) == pytest.approx(expected * change.size**0.5)
    assert f"the noise of a round is {expected * change.size**0.5:.3g} times as large" in caplog.text


@pytest.mark.parametrize("privacy", NOISY)
def test_updates_are_clipped(place: Place, privacy: str) -> None:
    little = {"central-dp.noise-multiplier": 1e-9, "local-dp.epsilon": 1e9}
    _, whole = _changed(place)
    place.forget()
    _, change = _changed(place, privacy=privacy, **little, **{f"{privacy}.clipping-norm": 1e-2})
    assert np.linalg.norm(whole) > 2e-2
    assert 0.5e-2 < np.linalg.norm(change) < 1.01e-2


def test_the_server_sees_only_masked_factors(place: Place) -> None:
    """With secure aggregation, no answer of a node holds its factors, and their mean is right."""
    options = {"rounds": 1, "train.seed": 5}
    plain, _ = place.run(**options)
    equal = plain.adapter.state()
    place.forget()
    server, grid = _server(place, privacy="secure-aggregation", **options)
    seen: list[RecordDict] = []
    for node in grid.nodes.values():
        answer = node.answer
        node.answer = lambda message, answer=answer: _seen(answer(message), seen)  # type: ignore[misc, method-assign]
    server.run(grid)
    assert len(seen) == 10  # four stages and an evaluation on each node
    assert all(not len(record) for content in seen for record in content.array_records.values())
    found = server.adapter.state()
    assert max(np.abs(found[name] - each).max() for name, each in equal.items()) < 5e-3  # equal weights differ a little


def _seen(message: Message | None, seen: list[RecordDict]) -> Message | None:
    assert message is not None
    seen.append(message.content)
    return message


def test_what_a_node_sends_is_what_the_docs_say(place: Place) -> None:
    server, grid = _server(place, rounds=1)
    sent: list[RecordDict] = []
    for node in grid.nodes.values():
        answer = node.answer
        node.answer = lambda message, answer=answer: _seen(answer(message), sent)  # type: ignore[misc, method-assign]
    server.run(grid)
    names = set(server.pieces.shapes)
    for content in sent:
        assert not content.config_records
        (measures,) = content.metric_records.values()
        assert measures.keys() in ({"tokens", "loss", "steps", "seconds", "peak_rss_mb"}, {"tokens", "eval_loss"})
        assert all(isinstance(each, (int, float)) for each in measures.values())
        for record in content.array_records.values():
            assert set(record) == names
    assert json.dumps(server.last.history)


def test_a_model_of_the_server_is_enough_to_refuse_other_rounds(place: Place) -> None:
    place.run(rounds=1)
    with pytest.raises(FeatherbackError, match="another form"):
        Server(Federation.of(place.run_config(**{"train.rank": 2})))
    write_tiny_chat(place.model, {"general.name": "renamed"}, seed=9)  # other weights of the same architecture
    assert Server(Federation.of(place.run_config())).last.number == 1
