"""`featherback embed`"""

from __future__ import annotations

import json as json_format
from contextlib import closing
from pathlib import Path

from featherback.cli.classify import _texts
from featherback.cli.options import COMPUTE, MEMORY, MODEL
from featherback.cli.parameters import of_training
from featherback.core.options import option
from featherback.core.terminal import say
from featherback.errors import FeatherbackError


def embed(
    model: str = MODEL,
    text: str | None = option(
        None,
        positional=True,
        metavar="[TEXT]",
        help="The text to embed. If it is missing or -, each line of --file or of standard input is a text.",
    ),
    adapter: Path | None = option(None, metavar="PATH", help="A run of `--objective contrastive`, or a PEFT adapter."),
    file: Path | None = option(None, metavar="PATH", help="A file with one text per line."),
    out: Path | None = option(
        None,
        metavar="PATH",
        help="Write the vectors to this file, for NumPy: .npy. The default is a line of JSON for each text.",
    ),
    pooling: str | None = option(
        None,
        metavar="mean|cls|last",
        help="What a vector is: the mean of all tokens' states, the state of the first token, or that of the last.",
        shown_default="as the run or the model says",
    ),
    memory: int | str | None = MEMORY,
    quantize: str = of_training(),
    compute: str = COMPUTE,
    threads: int | None = of_training(),
) -> None:
    """Turn texts into vectors of length 1, with MODEL and perhaps an adapter.

    Example: featherback embed all-MiniLM-L6-v2 "The striker scored twice."
    """
    import numpy as np

    from featherback.cli.options import check_adapter, open_model, set_threads
    from featherback.core.files import atomic_file
    from featherback.data.tokenizers.loader import load_tokenizer
    from featherback.engine.host.maps import MapWatch
    from featherback.runs.decoders import Within
    from featherback.runs.embedding import Embedder

    if out is not None and out.suffix != ".npy":
        raise FeatherbackError(f"--out {out}: the vectors are written for NumPy; name a file that ends in .npy.")
    opened, _ = open_model(model, quantize=quantize)
    if adapter is not None:
        check_adapter(opened, adapter)
    set_threads(threads)
    exact = "fp32" if compute == "auto" else compute
    with MapWatch(opened.maps) as maps:
        tokenizer = load_tokenizer(opened.path)
        within = Within(memory, whole=True)
        with closing(Embedder(opened, tokenizer, adapter, pooling, exact, within)) as embedder:
            if file is not None and file.is_file():  # a pipe can be read only once
                embedder.make_room(_texts(text, file))
            found = []
            for vector in embedder.embed(_texts(text, file)):
                maps.check()
                if out is None:
                    say(json_format.dumps([float(f"{number:.7g}") for number in vector.tolist()]))
                else:
                    found.append(vector)
    if out is not None:
        with atomic_file(out) as written:
            np.lib.format.write_array(written, np.stack(found), allow_pickle=False)
        say(f"wrote {out}: {len(found)} vectors of {found[0].size} numbers")
