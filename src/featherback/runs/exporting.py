"""Exports a run or an adapter for another program; used by `featherback export` and `featherback.export`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from featherback import models
from featherback.core.files import remove_abandoned
from featherback.core.naming import argument, argument_is
from featherback.core.private import check_run
from featherback.engine.formats.quantize import quantizable
from featherback.engine.formats.types import TensorType
from featherback.errors import FeatherbackError, did_you_mean, expected
from featherback.exports import FORMATS, formats
from featherback.exports.base_model import base_of_run, model_path
from featherback.exports.formats.base import Exported, Format, Request, WholeRequest
from featherback.models.adapter import Adapter
from featherback.models.hub.locate import locate
from featherback.models.loader import results
from featherback.runs.embedding import run_pooling

_OTHER_NAMES = dict.fromkeys(("hf", "huggingface", "transformers", "safetensors"), ("merged", "peft"))
"""Names that users type for a target -> the targets that they may mean."""


def export(
    source: Path | Adapter,
    to: str,
    model: str | None = None,
    out: Path | None = None,
    kind: str | None = None,
    base_model: str | None = None,
    force: bool = False,
) -> Exported:
    """Write the adapter or the trained model in `source` for the target `to`, and return what was written.

    An adapter in memory needs `out`. `model`: the base model; None for the one that the run or adapter names. `out`:
    None for a path beside the source. `kind`: the number format to write; None for the target's default. `force`:
    replace existing files. FeatherbackError for options that do not fit together, and if the output cannot be written.
    """
    if to.lower() in _OTHER_NAMES and to not in FORMATS.names:
        meant = did_you_mean(_OTHER_NAMES[to.lower()])
        raise FeatherbackError(f"{argument_is('to', repr(to))}; {expected(to, FORMATS.names)}{meant}")
    target, stored = FORMATS[to], _type(kind)
    request: Request | WholeRequest
    place: Path | None = None
    if isinstance(source, Adapter):
        if out is None:
            raise FeatherbackError(
                f"{argument('out')} is missing; add the path to write, because the adapter is in memory."
            )
        opened = source.model
        request = Request(source if model is None else source.on(models.load(locate(model))), out, stored, base_model)
    elif (trained := _trained(source)) is not None:
        place = trained
        request = _whole(source, trained, target, stored, model)
        opened = request.model
    else:
        place = formats.place_of(_found(source))
        form = formats.detect(place)
        opened = models.load(model_path(place, model))
        request = Request(formats.load(opened, place, format=form), Path(), stored, base_model)
        named = place if place.name not in ("", "..") else place.absolute()
        stem = named.name if named.is_dir() else named.stem
        request = replace(request, out=named.parent / target.name(request, stem))
    if out is not None:
        request = replace(request, out=out)
    if isinstance(source, Path):
        request = replace(request, pooling=run_pooling(source))
    target.check(request)
    formats.check_out(target, request.out, place, opened, force)
    remove_abandoned(request.out)  # an abandoned file may take the space that is needed
    done = target.write(request) if isinstance(request, Request) else target.write_whole(request)
    warning = [] if isinstance(source, Adapter) else _warning(source)
    return replace(done, notes=[*done.notes, *warning])


def _trained(run: Path) -> Path | None:
    """Return the whole model that a run trained, None if it has none."""
    check_run(run)
    return next((path for path in results(run) if path.exists()), None)


def _warning(source: Path) -> list[str]:
    """Return a warning if `source` is a run that ended worse than it began, otherwise nothing."""
    from featherback.runs.outcome import describe_worsening
    from featherback.runs.run_directory import RunDirectory

    with suppress(FeatherbackError):  # `source` is an adapter, or a run of another version
        rise = describe_worsening(RunDirectory.open(source).record.summary)
        return [] if rise is None else [f"{source} is worse than before training: {rise}"]
    return []


def _found(source: Path) -> Path:
    """Return the path of the model called `source`, or `source` itself. An error about a model then shows its path."""
    with suppress(FeatherbackError):
        return locate(source)
    return source


def _whole(source: Path, trained: Path, target: Format, kind: TensorType | None, named: str | None) -> WholeRequest:
    """Return the request to export the whole model that the run `source` trained."""
    opened = models.load(trained)
    request = WholeRequest(opened, Path(), kind, base_of_run(source, named))
    place = source.absolute()
    return replace(request, out=place.parent / target.whole_name(request, place.name))


def _type(name: str | None) -> TensorType | None:
    """Return the number format with this name; raises FeatherbackError if there is none."""
    if name is None:
        return None
    known = {kind.name.lower(): kind for kind in TensorType if quantizable(kind)}
    if name.lower() not in known:
        raise FeatherbackError(f"{argument_is('type', repr(name))}; {expected(name, known)}")
    return known[name.lower()]
