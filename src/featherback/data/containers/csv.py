"""CSV files, as spreadsheets write them."""

from featherback.data.containers.separated import Separated


class Csv(Separated):
    title = "CSV"
    suffixes = (".csv",)
    usual = ","


CONTAINER = Csv()
