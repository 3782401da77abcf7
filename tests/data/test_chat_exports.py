"""Exports of ChatGPT, Claude, Telegram, Discord and Signal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from featherback.data.contents import contents
from featherback.data.source import Source
from featherback.errors import FeatherbackError
from tests.data.talks import notes, saved, talks, write
from tests.data.test_readers import detect

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
