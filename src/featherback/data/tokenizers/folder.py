"""Load the tokenizer of a Hugging Face folder from tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from featherback.core.files import read_bytes, read_json
from featherback.data.templates.renderer import MOST_CHARACTERS
from featherback.data.tokenizers.json import (
    AddedToken,
    TokenizerFile,
    UnknownTokenizerError,
    native_core,
    read_tokenizer,
)
from featherback.data.tokenizers.special import (
    ADDED_ENDS,
    DEFAULT,
    TOOL_USE,
    control_names,
    correction_note,
    find_ends,
    joined,
    range_note,
)
from featherback.data.tokenizers.tokenizer import Core, Tokenizer
from featherback.data.tokenizers.wordpiece import WordPieceCore
from featherback.errors import FeatherbackError

FILE, _CONFIG, _MAP = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"


def from_folder(folder: str | Path) -> Tokenizer:
    """Load the tokenizer saved in a folder."""
    folder = Path(folder)
    read = read_tokenizer(check_present(folder))
    config = _read(folder / _CONFIG)
    template = _chat_template(folder, config)
    names = _special_names(folder, config)
    file, corrected = _corrected(read, [*names.values(), *_declared(config), *control_names(template)])
    core, note = _core(file, corrected)
    control = {token.content: token.id for token in file.added if token.special and token.content}
    # If the `tokenizers` library encodes the text, it finds these tokens itself.
    found = {} if note else {t.content: t.id for t in file.added if not t.special and t.content}
    bos_id, eos_id = (file.ids(names[name])[0] if name in names else None for name in ("bos_token", "eos_token"))
    if isinstance(core, WordPieceCore):  # its texts begin with [CLS] and end with [SEP], which are called otherwise
        bos_id, eos_id = file.begins_with, file.ends_with
    named, outside = named_ends(folder, core.n_vocab)
    ends = find_ends(folder, control, named, eos_id)
    notes = correction_note(file.path, corrected), range_note(folder, outside, core.n_vocab), ends.note
    return Tokenizer(
        core=core,
        control=control,
        always=found,
        space_prefix=file.space_prefix,
        space_like=file.space_like,
        add_bos=bos_id is not None and file.begins_with == bos_id,
        bos_id=bos_id,
        eos_id=ends.eos_id,
        end_ids=ends.ids,
        chat_template=template,
        template_source=f"The chat template of {folder}",
        special_names=names,
        widths={token.content: (token.lstrip, token.rstrip) for token in file.added},
        note=note,
        corrections=tuple(text for text in notes if text),
    )


def _corrected(file: TokenizerFile, used: Iterable[str]) -> tuple[TokenizerFile, list[str]]:
    """Mark the tokens of the vocabulary that are `used` as control tokens. Return their names too."""
    added = {token.content: token for token in file.added}
    names = {*used, *(ADDED_ENDS & added.keys())}
    wrong = sorted(name for name in names if name and not (name in added and added[name].special))
    ids = {name: i for name, i in zip(wrong, file.ids(*wrong), strict=True) if i is not None}
    plain = {name: AddedToken(i, name, special=True, lstrip=False, rstrip=False, plain=True) for name, i in ids.items()}
    marked = {name: replace(added.get(name, plain[name]), special=True, plain=True) for name in ids}
    return replace(file, added=tuple((added | marked).values())), list(ids)


def check_present(folder: Path) -> Path:
    """Return the path of the folder's tokenizer.json; raises FeatherbackError if it is missing."""
    path = folder / FILE
    if not path.is_file():
        raise FeatherbackError(
            f"{folder} contains no {FILE}. Save it with transformers: "
            f"AutoTokenizer.from_pretrained(MODEL).save_pretrained({str(folder)!r})"
        )
    return path


def _core(file: TokenizerFile, corrected: Sequence[str]) -> tuple[Core, str | None]:
    """Return the native core, or the library's core and a note that says why."""
    try:
        return native_core(file), None
    except UnknownTokenizerError as unknown:
        note = (
            f"{file.path} needs {unknown}, which Featherback's own tokenizer does not support. The `tokenizers` "
            "library reads it instead, which takes more memory than the budget accounts for."
        )
        if find_spec("tokenizers") is None:
            raise FeatherbackError(
                f"{file.path} needs {unknown}, which Featherback's own tokenizer does not support. The `tokenizers` "
                "library can read it, but is not installed: pip install 'featherback[tokenizers]'."
            ) from None
    from featherback.data.tokenizers.library import library_core  # takes 25 MB, and about 150 MB with a vocabulary

    try:
        return library_core(str(file.path), file.steps, corrected), note
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


def _special_names(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Return the special tokens by role. Old folders name some only in special_tokens_map.json."""
    names = {}
    for path, content in ((folder / _MAP, _read(folder / _MAP)), (folder / _CONFIG, config)):
        for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
            value = _content(content.get(name))
            if isinstance(value, str):
                if any("\ud800" <= character <= "\udfff" for character in value):
                    raise FeatherbackError(
                        f"{path} has half a surrogate pair in its {name}, which is not valid Unicode."
                    )
                names[name] = value
    return names


def _declared(config: dict[str, Any]) -> Iterator[str]:
    """Yield the other tokens that tokenizer_config.json declares special."""
    decoder = config.get("added_tokens_decoder")
    for token in decoder.values() if isinstance(decoder, dict) else ():
        if isinstance(token, dict) and token.get("special") is True and isinstance(token.get("content"), str):
            yield token["content"]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        tokens = config.get(key)
        for token in tokens.values() if isinstance(tokens, dict) else tokens if isinstance(tokens, list) else ():
            if isinstance(content := _content(token), str):
                yield content


def _content(token: Any) -> Any:
    return token.get("content") if isinstance(token, dict) else token


def named_ends(folder: Path, n_vocab: int) -> tuple[list[int], dict[str, object]]:
    """Return the end tokens of generation_config.json, or else of config.json, and values that are not in use."""
    outside: dict[str, object] = {}
    for name in ("generation_config.json", "config.json"):
        value = _read(folder / name).get("eos_token_id")
        values = [] if value is None else value if isinstance(value, list) else [value]
        ids = [i for i in values if type(i) is int and 0 <= i < n_vocab]
        if len(ids) < len(values):
            outside[f"eos_token_id of {name}"] = value
        if ids:
            return ids, outside
    return [], outside


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.exists():
        tools = folder / "additional_chat_templates" / f"{TOOL_USE}.jinja"
        named = {DEFAULT: _template_text(file)} | ({TOOL_USE: _template_text(tools)} if tools.exists() else {})
        return joined(named)
    template = config.get("chat_template")
    if isinstance(template, list):  # several templates by name
        return joined({str(t.get("name")): t.get("template") for t in template if isinstance(t, dict)})
    return template if isinstance(template, str) else None


def _template_text(file: Path) -> str:
    try:
        return read_bytes(file, MOST_CHARACTERS).decode("utf-8")
    except UnicodeDecodeError:
        raise FeatherbackError(f"{file} is not UTF-8 text.") from None
