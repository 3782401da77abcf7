"""Tab-separated values."""

from featherback.data.containers.separated import Separated


class Tsv(Separated):
    title = "TSV"
    suffixes = (".tsv", ".tab")
    usual = "\t"


CONTAINER = Tsv()
