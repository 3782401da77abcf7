"""What people have written: chats, mail and subtitles, in the form of each program's export."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

import featherback as fb
from featherback.data.containers import looks_like_data
from featherback.data.containers.letter import own_words
from featherback.data.contents import contents
from featherback.data.prepare import prepare
from featherback.data.readers import data_files
from featherback.data.source import Source
from featherback.errors import FeatherbackError
from tests.data.test_readers import detect, items, read
from tests.support.tiny_chat import write_tiny_chat

Turns = list[tuple[str, str]]


def talks(path: Path, *me: str) -> list[Turns]:
    """Return role and content of the messages of each conversation."""
    return [[(m["role"], m["content"]) for m in each.messages] for each in read(path, me=me)]


def notes(path: Path, *me: str) -> str:
    return " ".join(contents(Source.of(path, me=me)).notes)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="")
    return path


def saved(path: Path, value: Any, **how: Any) -> Path:
    return write(path, json.dumps(value, **how))


# --- WhatsApp ---

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
    assert run.summary["steps"] == 1


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


# --- ChatGPT and Claude ---


def node(
    name: str, parent: str | None, role: str, *parts: Any, children: tuple[str, ...] = (), **more: Any
) -> dict[str, Any]:
    content = {"content_type": more.pop("content_type", "text"), "parts": list(parts)}
    message = {"id": name, "author": {"role": role}, "content": content, "recipient": "all", "metadata": {}, **more}
    return {"id": name, "message": message, "parent": parent, "children": list(children)}


def chatgpt() -> list[dict[str, Any]]:
    nodes = [
        {"id": "root", "message": None, "parent": None, "children": ["s"]},
        node("s", "root", "system", ""),
        node(
            "c",
            "s",
            "user",
            content_type="user_editable_context",
            metadata={"is_visually_hidden_from_conversation": True},
        ),
        node("q", "c", "user", {"content_type": "image_asset_pointer"}, "2+2?", content_type="multimodal_text"),
        node("old", "q", "assistant", "5"),
        node("t", "q", "assistant", content_type="thoughts"),
        node("code", "t", "assistant", "print(4)", recipient="python"),
        node("out", "code", "tool", "4"),
        node("a1", "out", "assistant", "It is 4."),
        node("a2", "a1", "assistant", "Anything else?"),
        node("q2", "a2", "user", "No"),
    ]
    mapping = {each["id"]: each for each in nodes}
    empty = {"title": "x", "create_time": 1.5, "mapping": {"r": nodes[0]}, "current_node": "r"}
    return [empty, {"title": "Sum", "create_time": 1.5, "mapping": mapping, "current_node": "q2"}]


@pytest.mark.parametrize("indent", [None, 2])
def test_chatgpt(tmp_path: Path, indent: int | None) -> None:
    path = saved(tmp_path / "conversations.json", chatgpt(), indent=indent)
    assert detect(path) == "chatgpt"
    assert talks(path) == [[("user", "2+2?"), ("assistant", "It is 4.\n\nAnything else?")]]
    left = notes(path)
    for kind in ("1 attachment", "1 system message", "1 thought", "2 tool messages", "1 unanswered message"):
        assert kind in left
    assert contents(Source.of(path)).formats == ["conversations of ChatGPT"]


def test_damaged_trees_of_chatgpt_are_read_as_far_as_possible(tmp_path: Path) -> None:
    loop = {"mapping": {"a": node("a", "b", "user", "x"), "b": node("b", "a", "assistant", "y")}, "current_node": "b"}
    no_leaf = {"mapping": {"a": node("a", None, "user", "x", children=("b",)), "b": node("b", "a", "assistant", "y")}}
    odd = {"mapping": {"a": 1, "b": {"message": {"author": 3, "content": [], "metadata": None}}}, "current_node": ["b"]}
    path = saved(tmp_path / "c.json", [loop, no_leaf, odd])
    assert talks(path) == [[("user", "x"), ("assistant", "y")]] * 2


def claude_message(name: str, parent: str, sender: str, *content: Any, **more: Any) -> dict[str, Any]:
    content = tuple({"type": "text", "text": each} if isinstance(each, str) else each for each in content)
    return {"uuid": name, "text": "old", "content": content, "sender": sender, "parent_message_uuid": parent, **more}


def test_claude(tmp_path: Path) -> None:
    pasted = [{"file_name": "a.txt", "extracted_content": "the text"}, {"file_name": "b.png"}]
    messages = [
        claude_message("1", "0", "human", "Summarise", attachments=pasted),
        claude_message("2", "1", "assistant", "wrong"),
        claude_message("3", "1", "assistant", {"type": "thinking", "thinking": "hm"}, "Short."),
        claude_message("4", "3", "human", "More"),
        claude_message("5", "4", "assistant", {"type": "tool_use"}, {"type": "tool_result"}, "Long.", "Longer."),
    ]
    old = [{"sender": "human", "text": "Hi"}, {"sender": "assistant", "text": "Ho"}]
    path = saved(
        tmp_path / "c.json", [{"uuid": "u", "name": "n", "chat_messages": each} for each in (messages, old, [])]
    )
    assert detect(path) == "claude"
    first = [
        ("user", "Summarise\n\nthe text"),
        ("assistant", "Short."),
        ("user", "More"),
        ("assistant", "Long.\n\nLonger."),
    ]
    assert talks(path) == [first, [("user", "Hi"), ("assistant", "Ho")]]
    assert "1 thought" in notes(path)
    assert "2 tool messages" in notes(path)


# --- Telegram, Discord, Signal ---


def telegram(number: int, name: str | None, text: Any, **more: Any) -> dict[str, Any]:
    time = f"2023-12-24T18:05:{number:02}"
    return {"id": number, "type": "message", "date": time, "from": name, "from_id": "user1", "text": text, **more}


TELEGRAM = [
    {"id": 1, "type": "service", "date": "2023-12-24T18:05:00", "actor": "Ben", "action": "phone_call", "text": ""},
    telegram(2, "Ben", ["See ", {"type": "link", "text": "https://a.b"}, '  "messages": [']),
    telegram(3, "Ben", "", media_type="sticker", file="s.webp"),
    telegram(4, "Ben", "News", forwarded_from="Paper"),
    telegram(5, "Anna", "Seen"),
    telegram(6, None, "?"),
]


@pytest.mark.parametrize("indent", [None, 1])
def test_telegram(tmp_path: Path, indent: int | None) -> None:
    chat = {"name": "Ben", "type": "personal_chat", "id": 7, "messages": TELEGRAM}
    path = saved(tmp_path / "result.json", chat, indent=indent)
    expected = [[("user", 'See https://a.b  "messages": ['), ("assistant", "Seen")]]
    assert detect(path) == "telegram"
    assert talks(path, "Anna") == expected
    left = notes(path, "Anna")
    for kind in ("1 system message", "1 attachment", "1 forwarded message", "1 unanswered message"):
        assert kind in left
    about = "Here is the data you requested. Remember: Telegram is ad free."
    chats = {"about": about, "contacts": {"list": []}, "chats": {"list": [chat, {**chat, "messages": []}, chat]}}
    path = saved(tmp_path / "all.json", chats, indent=indent)
    assert detect(path) == "telegram"
    assert talks(path, "Anna") == expected * 2


def test_a_file_of_telegram_that_ends_too_early(tmp_path: Path) -> None:
    text = json.dumps({"name": "Ben", "type": "personal_chat", "id": 7, "messages": TELEGRAM})
    with pytest.raises(FeatherbackError, match="no closing bracket; the file may be incomplete"):
        talks(write(tmp_path / "r.json", text[:-30]), "Anna")
    with pytest.raises(FeatherbackError, match="not valid JSON"):
        talks(write(tmp_path / "r.json", text.replace('"id": 2', '"id": oops')), "Anna")


def discord(name: str, content: str, **more: Any) -> dict[str, Any]:
    author = {"id": "1", "name": name, "nickname": f"{name} the Great", "isBot": False}
    time = "2023-12-24T18:05:12.1234567+01:00"
    return {"id": "1", "type": "Default", "timestamp": time, "content": content, "author": author, **more}


def test_discord(tmp_path: Path) -> None:
    messages = [
        discord("ben", "", type="GuildMemberJoin"), discord("ben", "Hi"), discord("cem", "Hello"),
        discord("anna", "", attachments=[{}]), discord("anna", "Ho", type="Reply"),
    ]  # fmt: skip
    channel = {"guild": {"id": "1", "name": "G"}, "channel": {"id": "2", "name": "C"}, "messages": messages}
    path = saved(tmp_path / "G - C.json", channel, indent=2)
    assert detect(path) == "discord"
    expected = [[("user", "ben the Great: Hi\ncem the Great: Hello"), ("assistant", "Ho")]]
    assert talks(path, "anna") == talks(path, "Anna the Great") == expected


def test_signal_export(tmp_path: Path) -> None:
    def line(sender: str, body: str, **more: Any) -> str:
        usual = {"date": "2023-12-24T18:05:12.123000", "sender": sender, "body": body, "quote": "", "sticker": None}
        return json.dumps({**usual, "reactions": [], "attachments": [], "deleted": False, "call": False, **more})

    lines = [line("Ben", "Hi  "), line("Ben", "  "), line("Ben", "x", deleted=True), line("Me", "Ho  ")]
    path = write(tmp_path / "data.json", "\n".join(lines) + "\n")
    assert detect(path) == "signal"
    assert talks(path, "Me") == [[("user", "Hi"), ("assistant", "Ho")]]
    with pytest.raises(FeatherbackError, match="--me Me"):
        talks(path)
    text = "[2023-12-24 18:05:12] Ben: Hi  \n(- Me: 👍 -)\n\n[2023-12-24 18:05:13] Ben: ![a.png](./media/a.png)  \n\n"
    path = write(tmp_path / "chat.md", text + "[2023-12-24 18:05:14] Me: Ho  \n\n")
    assert talks(path, "Me") == [[("user", "Hi"), ("assistant", "Ho")]]


SIGTOP = """\
Conversation: Ben (+4912)

From: Ben (+4912)
Type: incoming
Sent: Sun, 24 Dec 2023 18:05:12 +0100
Received: Sun, 24 Dec 2023 18:05:13 +0100

Hi

there

Type: keychange
Sent: Sun, 24 Dec 2023 18:05:20 +0100

From: You
Type: outgoing
Sent: Sun, 24 Dec 2023 18:06:12 +0100
Attachment: a.png (image/png, 12 bytes)
Reaction: 👍 from Ben (+4912)

> From: Ben (+4912)
> Sent: Sun, 24 Dec 2023 18:05:12 +0100
>
> Hi

Ho

From: You
Type: outgoing
Sent: Sun, 24 Dec 2023 18:07:12 +0100
Edited: 2 versions

| Version: 2
| Sent: Sun, 24 Dec 2023 18:07:30 +0100
|
| new
|
| Version: 1
| Sent: Sun, 24 Dec 2023 18:07:12 +0100
|
| old

"""


def test_sigtop(tmp_path: Path) -> None:
    path = write(tmp_path / "Ben.txt", SIGTOP)
    assert detect(path) == "signal"
    assert talks(path, "You") == [[("user", "Hi\n\nthere"), ("assistant", "Ho\nnew")]]
    rows = [
        {
            "id": "1",
            "conversationId": "c",
            "type": kind,
            "body": body,
            "sent_at": 1703437512000 + n,
            "sourceServiceId": "s",
        }
        for n, (kind, body) in enumerate(
            [("incoming", "Hi"), ("keychange", None), ("outgoing", None), ("outgoing", "Ho")]
        )
    ]
    path = write(tmp_path / "Ben.json", "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    assert detect(path) == "signal"
    assert talks(path, "You") == [[("user", "Hi"), ("assistant", "Ho")]]


# --- mail ---


def mail(name: str, number: int, text: str, *, ids: str = "", after: str = "", more: str = "") -> str:
    date = f"Sun, 24 Dec 2023 18:{number:02}:12 +0100"
    sender = f"{name.title()} Example <{name}@example.org>"
    reply = f"In-Reply-To: {after}\nReferences: {after}\n" if after else ""
    head = (
        f"From: {sender}\nTo: x@example.org\nSubject: S\nDate: {date}\nMessage-ID: <{ids or number}@x>\n{reply}{more}"
    )
    return f"{head}\n{text}\n"


def mbox(*mails: str) -> str:
    return "".join(f"From MAILER-DAEMON Sun Dec 24 18:05:12 2023\n{each}\n" for each in mails)


QUOTING = "At nine.\n\nOn Sun, 24 Dec 2023 Ben Example\n<ben@example.org> wrote:\n> When?\n>\n> Ben\n-- \nAnna"
THREAD = mbox(
    mail("anna", 5, QUOTING, after="<1@x>"),
    mail("ben", 2, "Other thread"),
    mail("ben", 1, "When?\n>From here?\n\n--\nBen\nphone 1"),
    mail("anna", 9, "Anna alone", after="<nowhere@x>"),
    mail("ben", 7, "Good.\n\nSent from my iPhone", after="<1@x> <5@x>"),
    mail("anna", 8, "Bye", after="<7@x>"),
)  # fmt: skip


def test_threads_of_an_mbox(tmp_path: Path) -> None:
    path = write(tmp_path / "inbox.mbox", THREAD)
    assert detect(path) == "mail"
    expected = [[("user", "When?\nFrom here?"), ("assistant", "At nine."), ("user", "Good."), ("assistant", "Bye")]]
    assert talks(path, "anna@example.org") == talks(path, "Anna Example") == expected
    assert "1 unprompted message" in notes(path, "anna@example.org")
    with pytest.raises(FeatherbackError, match=r"ben@example\.org \(3\), anna@example\.org \(3\)"):
        talks(path)
    assert detect(write(tmp_path / "inbox", THREAD.replace("\n", "\r\n"))) == "mail"
    assert talks(tmp_path / "inbox", "anna@example.org") == expected


def test_a_folder_of_mails_is_a_mailbox(tmp_path: Path) -> None:
    (tmp_path / "sent").mkdir()
    write(tmp_path / "sent" / "2.eml", mail("anna", 2, "At nine.", after="<1@x>"))
    write(tmp_path / "1.eml", mail("ben", 1, "When?"))
    assert detect(tmp_path) == "mail_folder"
    assert talks(tmp_path, "anna@example.org") == [[("user", "When?"), ("assistant", "At nine.")]]
    write(tmp_path / "a.txt", "text")
    with pytest.raises(FeatherbackError, match="contains data files such as"):
        notes(tmp_path)


def encoded(kind: str, body: bytes, encoding: str = "base64") -> str:
    data = base64.encodebytes(body).decode() if encoding == "base64" else body.decode("latin-1")
    return f"Content-Type: {kind}\nContent-Transfer-Encoding: {encoding}\n\n{data}"


def test_the_text_of_a_mail_is_decoded(tmp_path: Path) -> None:
    html = b"<head><style>p {}</style></head><body><p>Gr&uuml;&szlig;e,<br>Ben</p><blockquote>old</blockquote></body>"
    attached = encoded("application/pdf", b"x" * 3_000_000)
    parts = ["", encoded("text/plain; charset=utf-8", "Ja, gern: 5 €".encode()), attached]
    mixed = 'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="b"\n'
    mails = [
        mail("ben", 1, "", more=encoded("text/html; charset=utf-8", html) + "\n"),
        mail("anna", 2, "--b\n".join(parts) + "--b--", after="<1@x>", more=mixed),
        mail("ben", 3, "", after="<2@x>", more=encoded('text/plain; charset="no-such"', b"caf=E9", "quoted-printable")),
        mail("anna", 4, "ok", after="<3@x>", more="X-Odd: =?utf-8?b?!!!?= <<<>>\n"),
        mail("anna", 5, "y" * 2_000_000, after="<3@x>"),
    ]  # fmt: skip
    path = write(tmp_path / "m.mbox", mbox(*mails))
    expected = [("user", "Grüße,\nBen"), ("assistant", "Ja, gern: 5 €"), ("user", "café"), ("assistant", "ok")]
    assert talks(path, "anna@example.org") == [expected]
    assert "1 message longer than 1 MB" in notes(path, "anna@example.org")


@pytest.mark.parametrize(
    ("written", "own"),
    [
        ("Yes\n\nAm 24.12.23 um 18:05 schrieb Ben <b@x>:\n\n> Ja?", "Yes"),
        ("Yes\n\nLe dim. 24 déc. 2023 à 18:05, Ben <b@x> a écrit :\n> Ja?", "Yes"),
        ("> One?\n1\n> Two?\n2", "1\n2"),
        ("Yes\n\n-----Original Message-----\nFrom: Ben\nold", "Yes"),
        ("Yes\n\n________________________________\nVon: Ben <b@x>\nGesendet: Sonntag\nAn: Anna\n\nold", "Yes"),
        ("Yes\n\nVon meinem iPhone gesendet", "Yes"),
        ("From: here\nto there", "From: here\nto there"),
        ("She wrote: yes\nand no", "She wrote: yes\nand no"),
        ("a\n\n\n\nb  \n", "a\n\nb"),
        ("> only a quote", ""),
    ],
)
def test_quoted_mails_and_signatures_are_removed(written: str, own: str) -> None:
    assert own_words(written) == own


def test_one_mail(tmp_path: Path) -> None:
    path = write(tmp_path / "a.eml", mail("ben", 1, "When?\nFrom MAILER Sun Dec 24 18:05:12 2023"))
    assert detect(path) == "mail"
    with pytest.raises(FeatherbackError, match=r"holds messages of ben@example\.org \(1\)"):
        talks(path)


# --- subtitles ---

SRT = "1\n00:00:01,000 --> 00:00:02,500\n<i>Hello,</i>\n{\\an8}Anna.\n\n2\n00:00:03,000 --> 00:00:04,000\n42\n\n"
VTT = (
    "WEBVTT - title\nKind: captions\n\nNOTE\nhidden\n\nSTYLE\n::cue {}\n\nintro\n00:01.000 --> 00:02.500 align:start\n"
    "<v Ben>Hello,\nAnna.\n\n00:03.000 --> 00:04.000\nAnna.\n<00:03.500><c.red>42</c>\n"
)


@pytest.mark.parametrize(("name", "text"), [("a.srt", SRT), ("a.vtt", VTT), ("a", SRT), ("a.txt", VTT)])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_subtitles(tmp_path: Path, name: str, text: str, end: str) -> None:
    path = write(tmp_path / name, "\ufeff" + text.replace("\n", end))
    assert detect(path) == "subtitles"
    [file] = data_files(Source.of(path))
    assert ["".join(each.pieces) for each in file.documents()] == ["Hello,\nAnna.\n42\n"]


# --- texts ---


@pytest.mark.parametrize(
    ("name", "text", "kept"),
    [
        ("a.md", "---\ntitle: A\ntags: [x]\n---\n# A\n", "# A\n"),
        ("a.md", "---\r\n\r\n# a comment\r\ntitle: A\r\n...\r\nText\r\n", "Text\n"),
        ("a.markdown", "+++\ntitle = 'A'\n+++\nText", "Text"),
        ("a.md", "---\nA line.\n---\n", None),
        ("a.md", "---\n\n---\nText\n", None),
        ("a.md", "---\ntitle: A\nno end\n", None),
        ("a.md", "---\ntitle: A\n" + "x" * 100_000 + "\n---\n", None),
        ("a.md", "Text\n---\ntitle: A\n---\n", None),
        ("a.txt", "---\ntitle: A\n---\nText\n", None),
        ("a.md", "---", None),
    ],
)
def test_front_matter(tmp_path: Path, name: str, text: str, kept: str | None) -> None:
    for place in (write(tmp_path / name, text), tmp_path):
        [file] = data_files(Source.of(place))
        assert ["".join(each.pieces) for each in file.documents()] == [text if kept is None else kept]
        assert ("1 front-matter block" in notes(place)) == (kept is not None)


def test_chats_in_a_folder_are_not_read_as_texts(tmp_path: Path) -> None:
    write(tmp_path / "_chat.txt", IOS)
    with pytest.raises(FeatherbackError, match=r"contains _chat.txt, a chat of WhatsApp or Signal.*--data "):
        notes(tmp_path)


# --- the whole way ---


def test_training_and_evaluation_read_chats_in_the_same_way(tmp_path: Path) -> None:
    model, path = write_tiny_chat(tmp_path / "model.gguf"), write(tmp_path / "_chat.txt", IOS)
    report = prepare(model, Source.of(path, me=("Anna",), long="keep"), tmp_path / "d.tokens", 256)
    assert report.examples == 1
    assert any(note.startswith(f"Left out of {path}: ") for note in report.notes())
    assert fb.evaluate(model, path, me="Anna").tokens == report.supervised_tokens
    source = Source.of(path, me=("Anna",))
    assert Source.from_json(json.loads(json.dumps(source.to_json()))) == source


# --- limits ---


@pytest.mark.parametrize("name", ["lines", "one", "telegram", "values"])
def test_a_message_is_limited_before_it_is_kept(tmp_path: Path, name: str) -> None:
    begin = "01/02/24, 10:00 - Ben: "
    texts = {
        "lines": begin + ("x" * 1000 + "\n") * 17_000,
        "one": begin + "x" * 17_000_000,
        "telegram": '{"type": "personal_chat", "messages": [{"text": "' + "x" * 17_000_000,
        "values": '{"type": "personal_chat", "messages": [{"text": [' + "{}," * 251_000,
    }
    with pytest.raises(FeatherbackError, match=r"longer than 16 MB|more than 250000"):
        talks(write(tmp_path / "d", texts[name]), "Anna")


def test_slow_forms_of_text_take_linear_time(tmp_path: Path) -> None:
    """Each of these would take minutes if it took quadratic time."""
    head = "01/02/24, 10:00 - Ben: "
    said = [" " * 1_000_000 + "b", "<edited" * 200_000, "<" * 1_000_000, "a.b (" * 200_000]
    write(tmp_path / "c.txt", "".join(f"{head}a{each}\n{head.replace('Ben', 'Anna')}c\n" for each in said))
    assert len(talks(tmp_path / "c.txt", "Anna")) == 4
    odd = mail("ben", 1, "a", more="X: y\n").replace("ben@", "(a, " * 200_000 + "ben@")
    mails = mbox(
        odd, mail("ben", 2, "> " * 200_000 + "\n" * 200_000), mail("ben", 4, "b"), mail("anna", 5, "c", after="<4@x>")
    )
    left = notes(write(tmp_path / "m.mbox", mails), "anna@example.org")
    assert "1 empty message" in left
    # How deep the library for mail can recurse depends on the process, so the odd sender is unreadable or just unknown.
    assert "1 unreadable message" in left or "1 unanswered message" in left


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("a b.pdf", "pdftotext 'a b.pdf' 'a b.txt'"),
        ("a.rtf", "pandoc --wrap=none -t plain -o a.txt a.rtf"),
        ("a.tar.gz", "tar xf a.tar.gz"),
        ("a.tgz", "tar xf a.tgz"),
        ("a.rar", "unrar x a.rar"),
    ],
)
def test_documents_are_refused_with_the_command_that_converts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if name.endswith("gz"):
        Path(name).write_bytes(gzip.compress(b"{"))
    else:
        write(Path(name), "%PDF-1.4" if name.endswith("pdf") else "{\\rtf1 Hi}")
    assert looks_like_data(Path(name), b"{")
    with pytest.raises(FeatherbackError, match=f": {re.escape(command)}\\."):
        items(Path(name))
