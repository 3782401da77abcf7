"""A model in several GGUF files, as written by llama-gguf-split: NAME-00001-of-00003.gguf and so on.

The first part has the model's metadata, and may have tensors. Each part states the number of parts and its own.
"""

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from featherback.engine.formats.gguf import GGUFFile
from featherback.engine.formats.mapping import MappedFile, corrupt
from featherback.errors import FeatherbackError, excerpt

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
COUNT, NUMBER, TENSORS = "split.count", "split.no", "split.tensors.count"  # parts are numbered from 0


def part_names(name: str) -> list[str]:
    """Return the names of all parts of the model that the file `name` belongs to. If it is not split: only `name`."""
    if (match := _PART.fullmatch(name)) is None:
        return [name]
    stem, number, count = match[1], int(match[2]), int(match[3])
    if not 1 <= number <= count:
        return [name]
    return [f"{stem}-{part:05}-of-{count:05}.gguf" for part in range(1, count + 1)]


def open_gguf(path: str | Path) -> GGUFFile:
    """Open the GGUF file at `path`, or all parts of a split model if `path` is one of them.

    Raises FeatherbackError as GGUFFile does, and if a part is missing or its name and its content disagree.
    """
    path = Path(path)
    names = part_names(path.name)
    if len(names) > 1:
        return SplitGGUF([path.with_name(name) for name in names])
    file = GGUFFile(path)
    if (count := file.metadata.get(COUNT, 0)) in (0, 1):
        return file
    file.close()
    raise FeatherbackError(
        f"{path} is one of {excerpt(count)} parts of a split model. Rename it to its original name, like "
        f"model-00001-of-00003.gguf, and put all parts in one folder."
    )


class SplitGGUF(GGUFFile):
    """The first part of a split model, with the tensors of the other parts."""

    def __init__(self, paths: list[Path]) -> None:
        """Open the parts, given in order."""
        for path in paths:
            if not path.exists():
                raise FeatherbackError(
                    f"{path} is missing: the {len(paths)} parts of a split model must be in one folder."
                )
        self._home: dict[str, GGUFFile] = {}  # by tensor, for those that are not in the first part
        self._others: list[GGUFFile] = []
        super().__init__(paths[0])
        try:
            _check_part(self, 0, len(paths))
            for number, path in enumerate(paths[1:], 1):
                part = GGUFFile(path)
                self._others.append(part)
                _check_part(part, number, len(paths))
                self.i2_s |= part.i2_s
                for name, info in part.tensors.items():
                    if name in self.tensors:
                        raise corrupt(path, f"the tensor {name!r} is also in another part")
                    self.tensors[name], self._home[name] = info, part
            announced = self.metadata.get(TENSORS, len(self.tensors))
            if announced != len(self.tensors):
                raise FeatherbackError(
                    f"The {len(paths)} parts of {self.path} hold {len(self.tensors)} tensors, but the first part says "
                    f"{excerpt(announced)}. Download all parts again, from one place."
                )
        except BaseException:
            self.close()
            raise

    def data(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor: a one-dimensional read-only view of its part's memory map."""
        return self._home[name].data(name) if name in self._home else super().data(name)

    def file_of(self, name: str) -> Path:
        """Return the part that holds the tensor."""
        return self._home[name].path if name in self._home else self.path

    def maps(self) -> list[MappedFile]:
        """Return the mapped parts."""
        return [*super().maps(), *(each for part in self._others for each in part.maps())]

    def close(self) -> None:
        """Close the memory maps. Views taken from them stay valid."""
        super().close()
        for part in self._others:
            part.close()


def _check_part(file: GGUFFile, number: int, count: int) -> None:
    """Raise FeatherbackError if the file's name and its metadata disagree about the part."""
    said = file.metadata.get(COUNT)
    if said != count:
        raise FeatherbackError(
            f"The name of {file.path} says that there are {count} parts, but its key {COUNT} is {excerpt(said)}. "
            f"Download all parts again, from one place."
        )
    said = file.metadata.get(NUMBER)
    if said != number:
        found = f"part {said + 1}" if type(said) is int else f"{NUMBER} {excerpt(said)}"
        raise FeatherbackError(
            f"The name of {file.path} says part {number + 1} of {count}, but its content says {found}. "
            f"Give the parts their original names."
        )
