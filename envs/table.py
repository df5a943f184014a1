"""A file of examples as columns: JSONL (an object a line) or CSV (a header, then a row a line), in UTF-8."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlfw.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Table:
    """Rows with the same columns. The values of a CSV file are strings; those of JSONL may be any."""

    source: str  # the key and the file, for messages
    columns: dict[str, list[Any]]
    lines: list[int]  # where in the file each row stands
    sha256: str  # of the file

    def __len__(self) -> int:
        return len(self.lines)

    def text(self, name: str, *, empty: bool) -> list[str]:
        """A column of strings; UserError with the line of a value that is none. ``empty``: "" is one."""
        if name not in self.columns:
            raise UserError(f"{self.source} has no column {name}; there are {', '.join(self.columns)}")
        for line, value in zip(self.lines, self.columns[name], strict=True):
            at = f"{self.source}, line {line}: the {name} is"
            if not isinstance(value, str):
                raise UserError(f"{at} {json.dumps(value):.80}; it must be text: put it in quotes")
            if not value and not empty:
                raise UserError(f"{at} empty")
            if any("\ud800" <= character <= "\udfff" for character in value):
                raise UserError(f"{at} {json.dumps(value):.80}, with half of a surrogate pair, which is no character")
        return self.columns[name]

    def row(self, i: int) -> dict[str, Any]:
        return {name: values[i] for name, values in self.columns.items()}


def read_table(key: str, file: str) -> Table:
    """The table in ``file``, which ``key`` of the configuration names; UserError for whatever is none."""
    path, source = Path(file), f"{key}={file}"
    if path.suffix not in (".jsonl", ".csv"):
        raise UserError(f"{source}: the name of a file of examples ends in .jsonl or .csv")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{source}: {error.strerror or error}") from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(f"{source}, line {line}: this is no UTF-8: save the file in that encoding") from error
    rows = list(_json_rows(text, source) if path.suffix == ".jsonl" else _csv_rows(text, source))
    if not rows:
        raise UserError(f"{source} has no rows")
    first, names = rows[0][0], list(rows[0][1])
    for line, row in rows:
        if set(row) != set(names):
            raise UserError(
                f"{source}, line {line} has the columns {', '.join(row) or 'none'} and line {first} has "
                f"{', '.join(names) or 'none'}: every row has the same"
            )
    columns = {name: [row[name] for _, row in rows] for name in names}
    return Table(source, columns, [line for line, _ in rows], hashlib.sha256(content).hexdigest())


def _json_rows(text: str, source: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, row); empty lines are passed over."""
    for line, entry in enumerate(text.split("\n"), 1):
        if not entry.strip():
            continue
        try:
            row = json.loads(entry, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{source}, line {line} is no JSON: {error}") from error
        if not isinstance(row, dict):
            raise UserError(f'{source}, line {line} is no object: a line reads {{"prompt": ..., "answer": ...}}')
        yield line, row


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"it has {twice} twice")
    return dict(pairs)


def _csv_rows(text: str, source: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, row), a row that spans several lines at the last of them; empty lines are passed over."""
    reader, names = csv.reader(io.StringIO(text, newline=""), strict=True), None
    try:
        for row in filter(None, reader):
            if names is None:
                names = _header(row, source)
            elif len(row) != len(names):
                raise UserError(f"{source}, line {reader.line_num} has {len(row)} values for {len(names)} columns")
            else:
                yield reader.line_num, dict(zip(names, row, strict=True))
    except csv.Error as error:
        raise UserError(f"{source}, line {reader.line_num} is no CSV: {error}") from error


def _header(names: list[str], source: str) -> list[str]:
    for i, name in enumerate(names):
        if not name.strip():
            raise UserError(f"{source}: column {i + 1} has no name: the first line names them all")
        if name in names[:i]:
            raise UserError(f"{source} has two columns {name}: rename one")
    return names
