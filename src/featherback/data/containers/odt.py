"""Documents of LibreOffice."""

from featherback.data.containers.docx import Docx


class Odt(Docx):
    title = "document of LibreOffice"
    suffixes = (".odt",)
    member = "content.xml"
    texts = frozenset({"p", "h"})
    space = r"\s+"


CONTAINER = Odt()
