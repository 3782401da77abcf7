"""Arrow files, such as those in a folder of `datasets.save_to_disk`."""

from featherback.data.containers.decoded import Decoded


class Arrow(Decoded):
    title = "Arrow"
    suffixes = (".arrow",)
    called, decoder = "an Arrow file", "arrow"
    package, module, extra = "pyarrow", "pyarrow", "parquet"

    def recognises_start(self, begin: bytes) -> bool:
        return begin.startswith(b"ARROW1")


CONTAINER = Arrow()
