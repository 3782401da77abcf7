"""Load the tokenizer of a Hugging Face folder from tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from featherback.core.files import read_bytes, read_json
from featherback.data.templates.renderer import MOST_CHARACTERS
from featherback.data.tokenizers.json import TokenizerFile, UnknownTokenizerError, native_core, read_tokenizer
from featherback.data.tokenizers.tokenizer import END_TOKENS, Core, Tokenizer
from featherback.errors import FeatherbackError

FILE, _CONFIG = "tokenizer.json", "tokenizer_config.json"


def from_folder(folder: str | Path) -> Tokenizer:
    """Load the tokenizer saved in a folder."""
    folder = Path(folder)
    file = read_tokenizer(check_present(folder))
    core, note = _core(file)
    config = _read(folder / _CONFIG)
    names = _special_names(config, folder / _CONFIG)
    control = {token.content: token.id for token in file.added if token.special and token.content}
    # If the `tokenizers` library encodes the text, it finds these tokens itself.
    found = {} if note else {t.content: t.id for t in file.added if not t.special and t.content}
    bos_id, eos_id = (file.ids(names[name])[0] if name in names else None for name in ("bos_token", "eos_token"))
    ends = {i for token, i in control.items() if token in END_TOKENS} | _generation_ends(folder)
    return Tokenizer(
        core=core,
        control=control,
        always=found,
        space_prefix=file.space_prefix,
        space_like=file.space_like,
        add_bos=bos_id is not None and file.begins_with == bos_id,
        bos_id=bos_id,
        eos_id=eos_id,
        end_ids=frozenset(ends if eos_id is None else ends | {eos_id}),
        chat_template=_chat_template(folder, config),
        template_source=f"The chat template of {folder}",
        special_names=names,
        widths={token.content: (token.lstrip, token.rstrip) for token in file.added},
        note=note,
    )


def check_present(folder: Path) -> Path:
    """Return the path of the folder's tokenizer.json; raises FeatherbackError if it is missing."""
    path = folder / FILE
    if not path.is_file():
        raise FeatherbackError(
            f"{folder} contains no {FILE}. Save it with transformers: "
            f"AutoTokenizer.from_pretrained(MODEL).save_pretrained({str(folder)!r})"
        )
    return path


def _core(file: TokenizerFile) -> tuple[Core, str | None]:
    """Return the native core, or the library's core and a note that says why."""
    try:
        return native_core(file), None
    except UnknownTokenizerError as unknown:
        note = (
            f"{file.path} needs {unknown}, which Featherback's own tokenizer does not support. The `tokenizers` "
            "library reads it instead, which takes more memory than the budget accounts for."
        )
    from featherback.data.tokenizers.library import library_core  # takes 25 MB, and about 150 MB with a vocabulary

    try:
        return library_core(str(file.path), file.steps), note
    except FeatherbackError:
        raise
    except Exception as error:  # the library raises plain Exceptions
        raise FeatherbackError(f"{file.path} is not a readable tokenizer: {error}.") from error


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    content = read_json(path)
    if not isinstance(content, dict):
        raise FeatherbackError(f"{path} does not hold a JSON object.")
    return content


def _special_names(config: dict[str, Any], path: Path) -> dict[str, str]:
    names = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = config.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            if any("\ud800" <= character <= "\udfff" for character in value):
                raise FeatherbackError(f"{path} has half a surrogate pair in its {name}, which is not valid Unicode.")
            names[name] = value
    return names


def _generation_ends(folder: Path) -> set[int]:
    ends = _read(folder / "generation_config.json").get("eos_token_id")
    return {i for i in (ends if isinstance(ends, list) else [ends]) if isinstance(i, int)}


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.exists():
        try:
            return read_bytes(file, MOST_CHARACTERS).decode("utf-8")
        except UnicodeDecodeError:
            raise FeatherbackError(f"{file} is not UTF-8 text.") from None
    template = config.get("chat_template")
    if isinstance(template, list):  # several templates by name
        template = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}.get("default")
    return template if isinstance(template, str) else None
