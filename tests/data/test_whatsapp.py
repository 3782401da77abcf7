"""Chats of WhatsApp, and how conversations are cut."""

from __future__ import annotations

from pathlib import Path

import pytest

import featherback as fb
from featherback.data.contents import contents
from featherback.data.source import Source
from featherback.errors import FeatherbackError
from tests.data.talks import notes, saved, talks, write
from tests.data.test_readers import detect
from tests.support.tiny_chat import write_tiny_chat

TALK = [
    ("user", "Wann kommst du?\nUm acht?"),
    ("assistant", "Um neun: spätestens.\n\nBringst du Wein?"),
    ("user", "Ja"),
]

SHORT_ANSWERS = [{"prompt": "a", "completion": "b"}] * 3
IOS = """\
[24.12.23, 18:05:12] Ben: \u200eNachrichten und Anrufe sind Ende-zu-Ende-verschlüsselt. Niemand kann sie lesen.
[24.12.23, 18:05:30] Ben: Wann kommst du?
[24.12.23, 18:05:33] Ben: Um acht?
\u200e[24.12.23, 18:06:01] Ben: \u200eBild weggelassen
[24.12.23, 18:06:12] Anna: Um neun: spätestens.

Bringst du Wein? \u200e<Diese Nachricht wurde bearbeitet.>
[24.12.23, 18:07:00] Ben: Ja
[24.12.23, 18:07:05] Anna: \u200eDu hast diese Nachricht gelöscht.
[24.12.23, 18:08:00] Anna: Gut
"""
WHOLE = [*TALK, ("assistant", "Gut")]


def clocked(head: str) -> str:
    """A chat whose lines begin with `head`, in which {} stands for a number up to 9."""
    said = [("Ben", "Hi"), ("Anna", "Ho: 1"), ("Ben", "<Media omitted>"), ("Ben", "IMG-1.jpg (file attached)\nSee?")]
    said += [("Anna", "This message was deleted"), ("Anna", "Yes")]
    system = (
        head.format(0) + "Messages and calls are end-to-end encrypted. No one outside of this chat can read them.\n"
    )
    return system + "".join(f"{head.format(n)}{name}: {text}\n" for n, (name, text) in enumerate(said, 1))


def test_whatsapp_of_ios(tmp_path: Path) -> None:
    path = write(tmp_path / "_chat.txt", IOS)
    assert detect(path) == "whatsapp"
    assert talks(path, "Anna") == [WHOLE]
    assert talks(path, "anna ") == [WHOLE]
    left = notes(path, "Anna")
    assert "1 attachment" in left
    assert "1 deleted message" in left
    assert "1 system message" in left
    assert f"Left out of {path}: " in left


@pytest.mark.parametrize(
    "head",
    [
        "24.12.23, 18:0{} - ",
        "24/12/2023, 18:0{} - ",
        "12/24/23, 6:0{} PM - ",
        "12/24/23, 6:0{}\u202fPM - ",
        "24/12/23 6:0{} p.\u00a0m. - ",
        "24/12/2023, 6:0{} pm - ",
        "2023-12-24, 18:0{} - ",
        "2023/12/24 18:0{} - ",
        "2023/12/24 下午6:0{} - ",
        "24-12-2023 18:0{} - ",
        "24.12.2023 klo 18.0{} - ",
        "[24/12/23, 18:0{}:59] ",
        "\u200e[12/24/23, 6:0{}:59\u202fPM] ",
        "[2023-12-24, 6:0{}:59 PM] ",
        "[2023. 12. 24. 오후 6:0{}:59] ",
        "2023년 12월 24일 오후 6:0{}, ",
        "[24.12.2023 18:0{}:59] ",
        "٢٤/١٢/٢٠٢٣، ٦:٠{} م - ",
    ],
)  # fmt: skip
def test_whatsapp_of_many_languages(tmp_path: Path, head: str) -> None:
    path = write(tmp_path / "chat.txt", clocked(head).replace("\n", "\r\n"))
    assert detect(path) == "whatsapp"
    assert talks(path, "Anna") == [[("user", "Hi"), ("assistant", "Ho: 1"), ("user", "See?"), ("assistant", "Yes")]]


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [
        ("01/02/24, 10:00 - ", "01/02/24, 12:59 - ", 1),
        ("01/02/24, 10:00 - ", "01/02/24, 13:01 - ", 2),
        ("31/01/24, 23:00 - ", "01/02/24, 01:00 - ", 1),
        ("1/31/24, 11:00 PM - ", "2/1/24, 1:00 AM - ", 1),
        ("1/31/24, 11:00 AM - ", "1/31/24, 11:00 PM - ", 2),
        ("1/31/24, 12:00 PM - ", "1/31/24, 1:00 PM - ", 1),
        ("1/31/24, 12:00 AM - ", "1/31/24, 12:00 PM - ", 2),
    ],
)
def test_a_conversation_ends_after_three_hours_of_silence(tmp_path: Path, first: str, second: str, count: int) -> None:
    said = f"{first}Ben: a\n{first}Anna: b\n{second}Ben: c\n{second}Anna: d\n"
    assert len(talks(write(tmp_path / "c.txt", said), "Anna")) == count


def test_a_long_conversation_ends_at_the_next_question(tmp_path: Path) -> None:
    lines = "".join(f"01/02/24, 10:00 - {'Ben' if n % 2 == 0 else 'Anna'}: {str(n) * 1000}\n" for n in range(10))
    found = talks(write(tmp_path / "c.txt", lines), "Anna")
    assert [len(each) for each in found] == [4, 4, 2]
    assert [each[0][0] for each in found] == ["user"] * 3


def test_names_in_groups_stand_before_their_messages(tmp_path: Path) -> None:
    lines = [
        "Ben: a",
        "Cem: b",
        "Anna: c",
        'Cem changed the subject from "a: b" to "c"',
        "Cem added Dana",
        "Cem: d",
        "Anna: e",
    ]
    text = "".join(f"01/02/24, 10:0{number} - {line}\n" for number, line in enumerate(lines))
    path = write(tmp_path / "c.txt", text)
    expected = [("user", "Ben: a\nCem: b"), ("assistant", "c"), ("user", "Cem: d"), ("assistant", "e")]
    assert talks(path, "Anna") == [expected]
    assert "2 system messages" in notes(path, "Anna")


def test_what_has_no_question_or_no_answer_is_left_out_and_counted(tmp_path: Path) -> None:
    lines = ["Anna: a", "Anna: b", "Ben: c", "Anna: d", "Ben: e"]
    path = write(tmp_path / "c.txt", "".join(f"01/02/24, 10:00 - {line}\n" for line in lines))
    assert talks(path, "Anna") == [[("user", "c"), ("assistant", "d")]]
    assert "2 unprompted messages" in notes(path, "Anna")
    assert "1 unanswered message" in notes(path, "Anna")


def test_the_names_are_listed_until_one_is_chosen(tmp_path: Path) -> None:
    path = write(tmp_path / "c.txt", clocked("24.12.23, 18:0{} - "))
    with pytest.raises(FeatherbackError) as refused:
        talks(path)
    assert "Ben (2), Anna (2)" in str(refused.value)
    assert "--me Ben." in str(refused.value)
    with pytest.raises(FeatherbackError, match=r"no message of 'Ana'.*Did you mean `Anna`\?"):
        talks(path, "Ana")
    assert len(talks(path, "Ana", "Anna")) == 1


@pytest.mark.parametrize("command", ["inspect", "evaluate", "train", "train examples"])
def test_a_name_for_data_without_people_is_an_error(tmp_path: Path, command: str) -> None:
    path, model = saved(tmp_path / "d.jsonl", SHORT_ANSWERS), write_tiny_chat(tmp_path / "model.gguf")
    use = {
        "inspect": lambda: contents(Source.of(path, me=("Anna",))),
        "evaluate": lambda: fb.evaluate(model, path, me="Anna"),
        "train": lambda: fb.train(model, path, tmp_path / "run", me="Anna"),
        "train examples": lambda: fb.train(model, SHORT_ANSWERS, tmp_path / "run", me="Anna"),
    }[command]
    with pytest.raises(FeatherbackError, match=r"Anna\W* names a person in chats or mail, and the data are neither"):
        use()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("chat_is", ["data", "eval_data", "both"])
def test_training_reads_a_chat_beside_other_data(tmp_path: Path, chat_is: str) -> None:
    """Regression: a run without evaluation data said that these hold no messages of the person."""
    other, chat = saved(tmp_path / "d.jsonl", SHORT_ANSWERS), write(tmp_path / "_chat.txt", IOS)
    model = write_tiny_chat(tmp_path / "model.gguf")
    data, held_out = {"data": (chat, None), "eval_data": (other, chat), "both": (chat, chat)}[chat_is]
    run = fb.train(model, data, tmp_path / "run", eval_data=held_out, me="Anna", steps=1, progress=False)
    assert run.summary.steps == 1


@pytest.mark.parametrize(
    "text",
    [
        "Dear Anna,\n24.12.23, 18:05 - we met.\n",
        "2023-12-24 18:05:12 - INFO: started\n2023-12-24 18:05:13 - INFO: ready\n",
        "[2023-12-24 18:05:12] ERROR: no disk\n[2023-12-24 18:05:13] INFO: ready\n",
        "2023-12-24 18:05:12,123 - root - INFO - ready\n",
        "1.2.3 - the version\n",
        "12/24/23, 6:05 PM - a note without a name\n",
        "From here on: nothing\n\nType: x\n",
    ],
)
def test_other_texts_are_texts(tmp_path: Path, text: str) -> None:
    assert detect(write(tmp_path / "d.txt", text)) == "text"
