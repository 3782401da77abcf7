"""Mailboxes and single mails."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from featherback.data.containers.letter import own_words
from featherback.errors import FeatherbackError
from tests.data.talks import notes, talks, write
from tests.data.test_readers import detect


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
