"""Parquet files."""

from featherback.data.containers.decoded import Decoded


class Parquet(Decoded):
    title = "Parquet"
    suffixes = (".parquet",)
    called, decoder = "a Parquet file", "parquet"
    package, module, extra = "pyarrow", "pyarrow", "parquet"

    def recognises_start(self, begin: bytes) -> bool:
        return begin.startswith(b"PAR1")


CONTAINER = Parquet()
