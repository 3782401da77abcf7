"""What the sender of a mail wrote: without quoted mails, and without the signature."""

from __future__ import annotations

import re

_WROTE = re.compile(
    r"(?:wrote|schrieb|a écrit|escribió|ha scritto|escreveu|schreef|skrev|napisał\(a\)|napisał|írta|написал\(а\)|写道)"
    r"[^\n]{0,80}[:：]$"
)
_FORWARDED = re.compile(
    r"-{2,}\s*(?:Original Message|Forwarded message|Ursprüngliche Nachricht|Weitergeleitete Nachricht|"
    r"Message d'origine|Message transféré|Mensaje original|Messaggio originale|Mensagem original|"
    r"Oorspronkelijk bericht)\s*-{2,}",
    re.IGNORECASE,
)
_FROM = re.compile(r"\*?(?:From|Von|De|Da|Van|Från|Fra):\*?\s+\S")
_SENT = re.compile(r"\*?(?:Sent|Date|Gesendet|Datum|Envoyé|Enviado(?: el)?|Inviato|Data|Verzonden|Skickat|Sendt):\*?\s")
_SENT_WITHIN = 3  # lines after _FROM
_SIGNATURE = re.compile(r"--[ \u00a0]?")
_DEVICE = re.compile(
    r"(?:Sent from my |Sent from |Get Outlook for |Von meinem .{1,40} gesendet|Gesendet von |Envoyé de mon |"
    r"Enviado desde mi |Inviato da |Enviado do meu |Verzonden vanaf mijn )[^\n]{0,60}"
)


def own_words(text: str) -> str:
    """Return the part of a mail that its sender wrote."""
    lines = [line.rstrip() for line in text.split("\n")]
    kept: list[str] = []
    for at, line in enumerate(lines):
        if _SIGNATURE.fullmatch(line) or _FORWARDED.match(line) or _is_header(lines, at):
            break
        if not line.startswith(">"):
            kept.append(line)
        elif at and not lines[at - 1].startswith(">"):
            _drop_attribution(kept)
    _drop_attribution(kept)  # of a quotation that had no marks
    while kept and (not kept[-1] or _DEVICE.fullmatch(kept[-1].strip())):
        kept.pop()
    if kept and set(kept[-1]) == {"_"}:  # the line above the header of a quoted mail
        kept.pop()
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()


def _is_header(lines: list[str], at: int) -> bool:
    """Whether the header of a quoted mail begins here, as Outlook writes it."""
    return bool(_FROM.match(lines[at])) and any(map(_SENT.match, lines[at + 1 : at + 1 + _SENT_WITHIN]))


def _drop_attribution(kept: list[str]) -> None:
    """Remove "On 24 December, Ben wrote:" from the end; it may be on two lines."""
    end = len(kept)
    while end and not kept[end - 1]:
        end -= 1
    for lines in (1, 2):
        if end >= lines and _WROTE.search(" ".join(kept[end - lines : end])):
            is_broken = lines == 1 and end > 1 and kept[end - 2] and not re.match(r"\S+ .*\d", kept[end - 1])
            del kept[end - lines - bool(is_broken) :]
            return
