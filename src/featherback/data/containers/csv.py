"""CSV files, as spreadsheets write them: with commas, or with semicolons if the first line has no comma."""

from featherback.data.containers.separated import Separated


class Csv(Separated):
    title = "CSV"
    suffixes = (".csv",)
    separators = (",", ";")


CONTAINER = Csv()
