"""A run or an adapter taken to another program: what `featherback export` and `featherback.export` share."""

from __future__ import annotations

from pathlib import Path

from featherback import models
from featherback.adapters import formats
from featherback.errors import FeatherbackError, expected
from featherback.files import remove_abandoned
from featherback.models.loader import results
from featherback.naming import argument, argument_is
from featherback.targets import TARGETS
from featherback.targets.base import Exported, Request, Target, check_out
from featherback.targets.base_of import model_path
from featherback.terminal import quoted
from featherback.weights.quantize import quantizable
from featherback.weights.types import TensorType
from featherback.whole.copy import copy_as


def export(
    source: Path,
    to: str,
    model: str | None = None,
    out: Path | None = None,
    kind: str | None = None,
    base_model: str | None = None,
    force: bool = False,
) -> Exported:
    """Write the adapter, or the trained model, in `source` for the target `to`; what was written.

    `model`: the base, None for what the run or adapter names. `out`: None for a place beside the source. `kind`: the
    number format of what is written, None for the target's choice. `force`: replace what is there. FeatherbackError for
    what does not fit together, and if nothing can be written.
    """
    target, stored = TARGETS[to], _type(kind)
    if (trained := next((path for path in results(source) if path.exists()), None)) is not None:
        return _model(trained, target, stored, out, force)
    place = formats.place_of(source)
    form = formats.detect(place)
    opened = models.load(model_path(place, model))
    adapter = formats.load(opened, place, format=form)
    request = Request(adapter, out or Path(), stored, base_model)
    if out is None:
        named = place if place.name not in ("", "..") else place.absolute()
        stem = named.name if named.is_dir() else named.stem
        request = Request(adapter, named.parent / target.name(request, stem), request.kind, base_model)
    target.check(request)
    check_out(request.out, place, opened, force)
    remove_abandoned(request.out)  # it may hold the room that is needed
    return target.write(request)


def _model(trained: Path, target: Target, kind: TensorType | None, out: Path | None, force: bool) -> Exported:
    """Write a model that a run trained in another number format: there is no adapter to be taken anywhere."""
    if target is not TARGETS["merged"] or kind is None:
        raise FeatherbackError(
            f"{trained} is a whole model, which others open as it is; {argument('to', 'merged')} with "
            f"{argument('type', 'q8_0')} writes it in another number format."
        )
    stem = f"{trained.parent.absolute().name}-{kind.name.lower()}"
    out = out or trained.parent.absolute().parent / f"{stem}{trained.suffix}"
    opened = models.load(trained)
    check_out(out, trained, opened, force)
    copy_as(opened, out, kind)
    return Exported(out, quoted("featherback", "generate", out, "--prompt", "Hello"))


def _type(name: str | None) -> TensorType | None:
    """The number format of this name; FeatherbackError if there is none."""
    if name is None:
        return None
    known = {kind.name.lower(): kind for kind in TensorType if quantizable(kind)}
    if name.lower() not in known:
        raise FeatherbackError(f"{argument_is('type', repr(name))}; {expected(name, known)}")
    return known[name.lower()]
