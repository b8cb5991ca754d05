"""Turns callers' frames (pyarrow, pandas, polars and others) into streams of Arrow data, and checks that data."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import pyarrow as pa

from lakemerge.errors import FrameError
from lakemerge.schema.soundness import find_flaw
from mergers.wording import in_python

__all__ = ["GivenFrame", "as_reader", "check_sound", "collected", "given_frame", "is_spark_column", "is_spark_frame"]

OLDEST_WITH_VIEWS = 25
"""The oldest major version of pyarrow that does with view types (``string_view``) what is done here. Older ones refuse
to measure them, or end the process."""
_FROM_PYTHON: dict[type, str] = {
    list: in_python(". pyarrow.Table.from_pylist(rows, schema=table.schema) makes one"),
    dict: in_python(". pyarrow.table(columns) makes one"),
}


class GivenFrame(NamedTuple):
    """A caller's frame as Arrow data."""

    reader: pa.RecordBatchReader
    size_bytes: int | None
    """About how many bytes the rows have as Arrow data. ``None`` if they are not in memory."""
    is_arrow: bool
    """Whether the caller has the rows as Arrow data in memory, so that to hold them costs nothing."""


def given_frame(given: object) -> GivenFrame:
    """Any frame that :func:`as_reader` takes. Raises its errors."""
    frame: Any = collected(given)
    if isinstance(frame, pa.Table | pa.RecordBatch) and not _takes_views():
        frame = _without_views(frame)
    reader, size = as_reader(frame), None
    is_arrow = isinstance(frame, pa.Table | pa.RecordBatch)
    if is_arrow:
        size = frame.nbytes
    elif hasattr(frame, "estimated_size"):  # polars
        size = int(frame.estimated_size())
    elif hasattr(frame, "memory_usage"):  # pandas
        size = int(frame.memory_usage(deep=False).sum())
    return GivenFrame(reader, size, is_arrow)


def as_reader(frame: object) -> pa.RecordBatchReader:
    """Any Arrow-speaking frame as a stream: pyarrow tables, batches and readers, pandas and polars
    frames (lazy ones :func:`collected`), and whatever offers the Arrow PyCapsule interface. Raises
    :class:`FrameError`."""
    reader = _reader(collected(frame))
    try:
        _ = reader.schema.names
    except UnicodeDecodeError as error:
        raise FrameError(f"a column of the frame has a name that is not UTF-8: {error}; rename it") from error
    return reader if _takes_views() else _without_views(reader)


def _takes_views() -> bool:
    return int(pa.__version__.split(".")[0]) >= OLDEST_WITH_VIEWS


def _without_views(frame: Any) -> Any:
    """Arrow data with its columns of view types cast to plain ones. Raises :class:`FrameError`."""
    schema = frame.schema
    plain = pa.schema([field.with_type(_plain(field)) for field in schema], schema.metadata)
    return frame if plain.equals(schema) else frame.cast(plain)


def _plain(field: pa.Field) -> pa.DataType:
    """A column's type without view types."""
    kind = field.type
    is_of_views = pa.types.is_dictionary(kind) and str(kind.value_type).endswith("_view")
    if is_of_views or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        raise FrameError(
            f"column {field.name!r} of the frame is {kind}, for which pyarrow {pa.__version__} is too old: cast it to "
            f"plain texts or lists, or pip install 'pyarrow>={OLDEST_WITH_VIEWS}'",
            column=field.name,
        )
    if str(kind).endswith("_view"):
        return {"string_view": pa.string(), "binary_view": pa.binary()}.get(str(kind), kind)
    inner = [kind.field(at).with_type(_plain(kind.field(at))) for at in range(kind.num_fields)]
    if pa.types.is_struct(kind):
        return pa.struct(inner)
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_plain(kind.key_field)), kind.item_field.with_type(_plain(kind.item_field))
        )
    if pa.types.is_large_list(kind):
        return pa.large_list(inner[0])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(inner[0], kind.list_size)
    return pa.list_(inner[0]) if pa.types.is_list(kind) else kind


def check_sound(rows: pa.RecordBatch | pa.Table, first_row: int = 0) -> None:
    """Raise :class:`FrameError` for text that is not UTF-8, and for columns that break Arrow's format.

    :param first_row: the number of the first row, for the error text.
    """
    flaw = find_flaw(rows, first_row)
    if flaw is None:
        return
    if flaw.is_text:
        remedy = "decode it from the encoding it is in, or keep it in a BINARY column"
    else:
        remedy = "make the frame again: the program that made this one broke Arrow's format"
    raise FrameError(f"{flaw.problem}; {remedy}", column=flaw.column, row=flaw.row)


def collected(frame: object) -> object:
    """The frame, or the rows of a polars ``LazyFrame``, computed by the engine that needs the least memory."""
    if not (type(frame).__module__.split(".")[0] == "polars" and type(frame).__name__ == "LazyFrame"):
        return frame
    query: Any = frame
    return query.collect(engine="streaming")


def _reader(frame: object) -> pa.RecordBatchReader:
    if isinstance(frame, pa.RecordBatchReader):
        return frame
    if isinstance(frame, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(frame.schema, [frame])
    if isinstance(frame, pa.Table):
        return frame.to_reader()
    if type(frame).__module__.startswith("pyspark.pandas"):
        raise FrameError("the frame is one of pandas-on-Spark: pass frame.to_spark(), so that Spark writes it")
    try:
        if type(frame).__module__.split(".")[0] == "pandas":
            return pa.Table.from_pandas(frame, preserve_index=False).to_reader()
        if type(frame).__module__.split(".")[0] == "polars" and hasattr(frame, "to_arrow") and not _takes_views():
            given: Any = frame
            return given.to_arrow(compat_level=sys.modules["polars"].CompatLevel.oldest()).to_reader()
        if hasattr(frame, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(frame)
    except (pa.ArrowException, ValueError, TypeError, AttributeError) as error:
        name = f"{type(frame).__module__}.{type(frame).__qualname__}"
        raise FrameError(f"the {name} is not a frame that Arrow can read: {error}", type=name) from error
    name = f"{type(frame).__module__}.{type(frame).__qualname__}".removeprefix("builtins.")
    made = _FROM_PYTHON.get(type(frame), "")
    raise FrameError(
        f"cannot write a {name}; give a Spark DataFrame, a pyarrow Table or RecordBatchReader, or a pandas or polars "
        f"frame{made}",
        type=type(frame).__qualname__,
    )


def is_spark_frame(frame: object) -> bool:
    """Whether it is a Spark DataFrame. The class is known by its name, so that pyspark is not imported for other
    frames."""
    return _is_of_spark(frame, "DataFrame")


def is_spark_column(value: object) -> bool:
    """Whether it is a Column of Spark, known by its class's name, too."""
    return _is_of_spark(value, "Column")


def _is_of_spark(value: object, name: str) -> bool:
    return any(base.__module__.startswith("pyspark.sql") and base.__name__ == name for base in type(value).__mro__)
