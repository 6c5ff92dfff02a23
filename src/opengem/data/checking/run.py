"""The check of logs from end to end."""

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from opengem.data.checking.examples import check_examples
from opengem.data.checking.features import check_features
from opengem.data.checking.leaks.judge import check_leaks
from opengem.data.checking.logs import join_logs, read_logs
from opengem.data.checking.report import DataCheck
from opengem.data.checking.tables import check_order, check_tables
from opengem.data.ingestion.work_database import Room
from opengem.schema.load import load_schema
from opengem.schema.words import Schema

Progress = Callable[[str, int, int | None], None]


def check_data(
    schema: Schema | str | Path,
    *,
    known: Iterable[str] = (),
    workers: int | None = None,
    memory_limit: str = "2GB",
    temporary_folder: str | Path | None = None,
    progress: Progress | None = None,
) -> DataCheck:
    """Read the logs that a schema describes as ingest would, build nothing, and report what is wrong with them.

    Args:
        schema: The schema, or its file.
        known: Columns, as `TABLE.COLUMN` or `COLUMN`, that are known before the example though they look otherwise.
        workers: Threads; by default all cores that the process may use.
        memory_limit: Memory of the joins, such as "2GB"; beyond it they spill to the temporary folder.
        temporary_folder: Where to spill; by default the system's folder for temporary files.
        progress: Called as `progress(stage, done, total)`.

    Returns:
        Facts and findings; it is `ok` where none of them is an error.

    Raises:
        ConfigError: The schema or an argument is wrong.
        DataError: A file or column breaks what the schema says of it, there is no example in a split, or room runs out.
    """
    schema = schema if isinstance(schema, Schema) else load_schema(schema)
    check = DataCheck(schema.name)
    done = 0

    def begin(stage: str) -> None:
        if progress is not None:
            progress(stage, done, None)

    def advance(rows: int) -> None:
        nonlocal done
        done += rows
        begin("read")

    with tempfile.TemporaryDirectory(prefix="opengem-check-", dir=temporary_folder) as folder:
        room = Room(memory_limit, None, None, workers)
        with room.database(Path(folder)) as (con, _):
            logs = read_logs(con, schema, advance)
            check_tables(logs, check)
            begin("examples")
            join_logs(logs)
            check_order(logs, check)
            check_examples(logs, check)
            begin("features")
            check_features(logs, check)
            begin("leaks")
            check_leaks(logs, check, frozenset(known))
    return check
