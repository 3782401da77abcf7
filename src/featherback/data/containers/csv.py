"""Comma-separated values, as spreadsheets write them; with semicolons where the first line has no comma."""

from featherback.data.containers.separated import Separated


class Csv(Separated):
    title = "CSV"
    suffixes = (".csv",)
    separators = (",", ";")


CONTAINER = Csv()
