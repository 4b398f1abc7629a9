"""Batches of columns through a session: rows in, rows out, in their order.

In: a batch as a dict of numpy arrays, a pyarrow table or a pandas frame. Out: a dict of numpy arrays with as
many rows. Rows of different shapes run apart, those of one shape together; what does not fit a model's
input is an error that names the column and the row of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ...errors import InvalidArgument
from ...ir import ElementType, element_of

Columns = dict[str, Any]


def columns_of(batch: Any) -> Columns:
    """The columns of a batch by name, as numpy arrays; a cell without a value is None in an array of
    objects. Raises InvalidArgument for what has no columns."""
    if isinstance(batch, Mapping):
        for name, column in batch.items():
            if not hasattr(column, "__len__") or isinstance(column, str | bytes | Mapping):
                raise InvalidArgument(
                    f"column {name!r} is no list of rows",
                    found=type(column).__name__,
                    expected="an array or a list with a value for each row",
                )
        return {
            name: column if isinstance(column, np.ndarray) else objects(column)
            for name, column in batch.items()
        }
    if hasattr(batch, "column_names"):
        return {name: _from_arrow(batch.column(name)) for name in batch.column_names}
    if hasattr(batch, "columns"):
        return {str(name): batch[name].to_numpy() for name in batch.columns}
    raise InvalidArgument(
        "a batch has no columns",
        found=type(batch).__name__,
        expected="a dict of numpy arrays, a pyarrow.Table or a pandas.DataFrame",
        cure='map_batches(..., batch_format="numpy")',
    )


def objects(rows: Sequence[Any]) -> np.ndarray:
    """An array with one object per row, whatever shapes the rows have."""
    made = np.empty(len(rows), object)
    for i, row in enumerate(rows):
        made[i] = row
    return made


def _from_arrow(column: Any) -> np.ndarray:
    import pyarrow as pa

    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(whole, pa.ChunkedArray):
        whole = whole.chunk(0) if whole.num_chunks else pa.array([], whole.type)
    if pa.types.is_dictionary(whole.type):
        whole = whole.dictionary_decode()
    if whole.null_count:
        return objects(whole.to_pylist())
    if hasattr(whole, "to_numpy_ndarray"):
        return whole.to_numpy_ndarray()
    if pa.types.is_fixed_size_list(whole.type) and pa.types.is_primitive(whole.type.value_type):
        values = whole.flatten()
        if not values.null_count:
            return values.to_numpy(zero_copy_only=False).reshape(len(whole), whole.type.list_size)
    return whole.to_numpy(zero_copy_only=False)


class Rows:
    """What one session makes of columns. `inputs`: the column of each input, where it is not called as the
    input is; `outputs`: the column of each output that is wanted, a list or a mapping, all by their own
    names where None; `constants`: inputs that are the same for every row. Raises InvalidArgument for names
    that the model does not have."""

    def __init__(
        self,
        session: Any,
        inputs: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | Sequence[str] | None = None,
        constants: Mapping[str, Any] | None = None,
    ) -> None:
        declared = {value.name: value for value in session.get_inputs()}
        given = {value.name for value in session.get_overridable_initializers()}
        results = {value.name: value for value in session.get_outputs()}
        _known(inputs or {}, declared, "input")
        _known(constants or {}, {*declared, *given}, "input")
        if isinstance(outputs, str):
            outputs = [outputs]
        _known(outputs or {}, results, "output")
        if outputs is None:
            outputs = tuple(results)
        self.outputs = dict(outputs) if isinstance(outputs, Mapping) else {name: name for name in outputs}
        self.constants = {name: np.asarray(value) for name, value in (constants or {}).items()}
        self.inputs = {
            name: (inputs or {}).get(name, name) for name in declared if name not in self.constants
        }
        self._session, self._declared, self._results = session, declared, results
        if not self.inputs:
            raise InvalidArgument(
                "no input of the model is a column",
                found="constants for all of them",
                cure="leave one out of constants",
            )
        firsts = {
            shape[0] for name in self.inputs if (shape := declared[name].shape) and isinstance(shape[0], int)
        }
        if len(firsts) > 1:
            raise InvalidArgument(
                "the inputs have first dimensions of different sizes, so none is the rows",
                found=sorted(firsts),
                cure="give all but one of them as constants",
            )
        self._rows = firsts.pop() if firsts else None
        for name in self.inputs:
            if not declared[name].shape:
                raise InvalidArgument(
                    f"input {name!r} has no first dimension for the rows",
                    found="a scalar",
                    cure=f"give it as constants={{{name!r}: value}}",
                )

    def run(self, columns: Columns) -> dict[str, np.ndarray]:
        """The outputs' columns for these. Raises InvalidArgument for a column that is not there and a value
        that does not fit."""
        return self.results(*self.fit(columns))

    def fit(self, columns: Columns) -> tuple[dict[str, Any], int]:
        """What the inputs are fed with, and how many rows that is: for each input an array or, where its rows
        have different shapes, a list of arrays. Raises what `run` raises."""
        for name, column in self.inputs.items():
            if column not in columns:
                raise InvalidArgument(
                    f"there is no column {column!r} for the input {name!r}",
                    found=f"columns {', '.join(map(repr, columns)) or 'none'}",
                    cure=f"name it by inputs={{{name!r}: 'its column'}}",
                )
        lengths = {column: len(columns[column]) for column in self.inputs.values()}
        if len(set(lengths.values())) > 1:
            raise InvalidArgument("the columns of a batch have different lengths", found=lengths)
        rows = next(iter(lengths.values()))
        if not rows:
            return {}, 0
        return {
            name: cells(columns[column], self._declared[name], column) for name, column in self.inputs.items()
        }, rows

    def results(self, fed: dict[str, Any], rows: int) -> dict[str, np.ndarray]:
        """The outputs' columns for what `fit` gave, or for several of these in a row (`joined`)."""
        if not rows:
            return {column: self._nothing(name) for name, column in self.outputs.items()}
        if all(isinstance(value, np.ndarray) for value in fed.values()):
            return dict(zip(self.outputs.values(), self._run(fed, rows), strict=True))
        return self._apart(fed, rows)

    def _apart(self, fed: dict[str, Any], rows: int) -> dict[str, np.ndarray]:
        """Rows of one shape together, and all back in their order."""
        groups: dict[tuple[Any, ...], list[int]] = {}
        for row in range(rows):
            groups.setdefault(tuple(value[row].shape for value in fed.values()), []).append(row)
        parts: list[list[Any]] = [[None] * rows for _ in self.outputs]
        for members in groups.values():
            taken = {
                name: value[members]
                if isinstance(value, np.ndarray)
                else np.stack([value[row] for row in members])
                for name, value in fed.items()
            }
            for part, result in zip(parts, self._run(taken, len(members)), strict=True):
                for row, cell in zip(members, result, strict=True):
                    part[row] = cell
        return {column: _together(part) for column, part in zip(self.outputs.values(), parts, strict=True)}

    def _run(self, fed: dict[str, np.ndarray], rows: int) -> list[np.ndarray]:
        step = self._rows
        if step is None or step == rows:
            return self._run_once(fed, rows)
        pieces = []
        for start in range(0, rows, step):
            piece = {name: value[start : start + step] for name, value in fed.items()}
            have = min(step, rows - start)
            if have < step:
                piece = {
                    name: np.concatenate([value, np.repeat(value[-1:], step - have, 0)])
                    for name, value in piece.items()
                }
            pieces.append([result[:have] for result in self._run_once(piece, step)])
        return [np.concatenate(results) for results in zip(*pieces, strict=True)]

    def _run_once(self, fed: dict[str, np.ndarray], rows: int) -> list[np.ndarray]:
        results = self._session.run(list(self.outputs), {**self.constants, **fed})
        for name, result in zip(self.outputs, results, strict=True):
            if not isinstance(result, np.ndarray) or not result.ndim or len(result) != rows:
                found = f"shape {result.shape}" if isinstance(result, np.ndarray) else type(result).__name__
                raise InvalidArgument(
                    f"output {name!r} does not have a row for each row of the batch",
                    found=found,
                    expected=f"{rows} rows",
                    cure="leave it out of outputs, or batch_size=1 where the model takes a batch for a whole",
                )
        return [_storable(result) for result in results]

    def _nothing(self, name: str) -> np.ndarray:
        declared = self._results[name]
        shape = [size if isinstance(size, int) else 0 for size in declared.shape[1:]]
        return _storable(np.empty((0, *shape), _element(declared.type).numpy))


def joined(several: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What `Rows.fit` gave for several batches, none of them empty, as if for one after the other."""
    whole: dict[str, Any] = {}
    for name in several[0]:
        parts = [fed[name] for fed in several]
        alike = all(isinstance(part, np.ndarray) and part.shape[1:] == parts[0].shape[1:] for part in parts)
        whole[name] = np.concatenate(parts) if alike else [row for part in parts for row in part]
    return whole


def _known(names: Any, known: Any, what: str) -> None:
    for name in names:
        if name not in known:
            raise InvalidArgument(
                f"the model has no {what} {name!r}", expected=f"{what}s {', '.join(map(repr, known))}"
            )


def _element(kind: str) -> ElementType:
    return ElementType[kind.removeprefix("tensor(").removesuffix(")").upper()]


def _storable(values: np.ndarray) -> np.ndarray:
    """Values in a type that tables have."""
    if values.dtype.isbuiltin == 1:
        return values
    return values.astype(np.float32 if element_of(values.dtype).floating else np.int8)


def _together(rows: list[np.ndarray]) -> np.ndarray:
    if len({(np.shape(row), np.asarray(row).dtype) for row in rows}) == 1:
        return np.stack(rows)
    return objects(rows)


def cells(column: Any, declared: Any, name: str) -> Any:
    """A column as an input takes it: an array where all rows have one shape, otherwise a list of arrays.
    `declared`: the input, a NodeArg. Raises InvalidArgument, which names the column and the row."""
    if not declared.type.startswith("tensor("):
        raise InvalidArgument(
            f"column {name!r}: the input is no tensor", found=declared.type, cure="columns hold tensors only"
        )
    column = np.asarray(column)
    element = _element(declared.type)
    if element is ElementType.STRING:
        return _texts(column, declared, name)
    if column.dtype != object:
        return _shaped(_cast(column, element, name, None), declared, name, None)
    rows = []
    for row, value in enumerate(column):
        if value is None:
            raise _misfit(name, row, "no value", f"{declared.type}", "drop or fill such rows first")
        try:
            array = np.asarray(value)
            array = np.stack(list(array)) if array.dtype == object else array
        except (ValueError, TypeError):
            found = "rows of its own of different lengths" if np.iterable(value) else type(value).__name__
            raise _misfit(name, row, found, declared.type, None) from None
        rows.append(_shaped(_cast(array, element, name, row)[None], declared, name, row)[0])
    return np.stack(rows) if len({row.shape for row in rows}) == 1 else rows


def _texts(column: np.ndarray, declared: Any, name: str) -> Any:
    if column.dtype.kind not in "OUST":
        raise _misfit(name, None, f"{column.dtype}", "texts", None)
    if column.dtype.kind in "UST":
        made = column.astype(object) if column.dtype.kind != "S" else np.char.decode(column).astype(object)
        return _shaped(made, declared, name, None)
    rows = []
    for row, value in enumerate(column):
        array = np.asarray(value, object)
        for text in array.flat:
            if not isinstance(text, str):
                raise _misfit(name, row, "no value" if text is None else type(text).__name__, "a text", None)
        rows.append(_shaped(array[None], declared, name, row)[0])
    if len({np.shape(row) for row in rows}) > 1:
        return [np.asarray(row, object) for row in rows]
    made = np.empty((len(rows), *np.shape(rows[0])), object)
    for i, each in enumerate(rows):
        made[i] = each
    return made


def _cast(values: np.ndarray, element: ElementType, name: str, row: int | None) -> np.ndarray:
    """The values in an input's type, where none becomes another: integers within range, any number to a
    float."""
    dtype = element.numpy
    if values.dtype == dtype:
        return values
    number, whole = values.dtype.kind in "biuf", values.dtype.kind in "biu"
    if not (number if element.floating else whole and element is not ElementType.BOOL):
        raise _misfit(
            name,
            row,
            f"values of {values.dtype}",
            f"{dtype}",
            "cast the column before, where a loss is meant",
        )
    if not element.floating and values.size and values.dtype.kind != "b":
        span = ml_dtypes.iinfo(dtype)
        outside = (values < int(span.min)) | (values > int(span.max))
        if outside.any():
            at = tuple(int(i) for i in np.argwhere(outside)[0])
            raise _misfit(
                name,
                at[0] if row is None else row,
                f"{values[at]}",
                f"{dtype}, {span.min} to {span.max}",
                None,
            )
    return values.astype(dtype)


def _shaped(values: np.ndarray, declared: Any, name: str, row: int | None) -> np.ndarray:
    """The values with the input's rank: as they are, or with their own sizes in another form where all of
    the input's are fixed."""
    sizes = declared.shape[1:]
    found = values.shape[1:]
    if len(found) == len(sizes) and all(
        not isinstance(size, int) or size == have for size, have in zip(sizes, found, strict=True)
    ):
        return values
    if all(isinstance(size, int) for size in sizes) and math.prod(sizes) == math.prod(found):
        return values.reshape(len(values), *sizes)
    raise _misfit(name, row, f"rows of shape {found}", f"rows of shape {tuple(sizes)}", None)


def _misfit(name: str, row: int | None, found: str, expected: str, cure: str | None) -> InvalidArgument:
    where = "" if row is None else f", row {row} of the batch"
    return InvalidArgument(
        f"column {name!r}{where}: the value does not fit the model's input",
        found=found,
        expected=expected,
        cure=cure,
    )
