"""The work database of an ingest: an embedded DuckDB with a memory limit that spills to a folder."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opengem.errors import ConfigError, DataError


def open_work_database(
    work: Path, workers: int | None, memory_limit: str, temporary_limit: str | None
) -> Any:
    """Open a database whose tables live in memory and spill to `work`.

    Args:
        work: Folder to spill to.
        workers: Threads; all cores that the process may use if None.
        memory_limit: Such as "2GB".
        temporary_limit: Most that may be spilled, such as "50GB"; None for what the disk holds.

    Raises:
        ConfigError: A limit is no size.
    """
    import duckdb

    settings: dict[str, Any] = {
        "memory_limit": memory_limit,
        "threads": workers or len(os.sched_getaffinity(0)),
        "temp_directory": str(work / "spill"),
        "preserve_insertion_order": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,
    }
    if temporary_limit is not None:
        settings["max_temp_directory_size"] = temporary_limit
    try:
        con = duckdb.connect(":memory:", config=settings)
    except duckdb.Error as error:
        raise ConfigError(
            f"memory_limit, temporary_limit and workers must be sizes such as 2GB, and a number of threads. "
            f"Received: {memory_limit}, {temporary_limit}, {workers} ({error})"
        ) from None
    con.execute("SET enable_progress_bar = false")
    return con


def one_row(con: Any, query: str, parameters: list[Any] | None = None) -> tuple[Any, ...]:
    """Return the only row of a query."""
    (row,) = con.execute(query, parameters or []).fetchall()
    return row


def memory_limit_bytes(con: Any) -> int:
    """Return the memory limit of a work database in bytes."""
    number, unit = one_row(con, "SELECT current_setting('memory_limit')")[0].split()
    return int(float(number) * {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}[unit])


@dataclass(frozen=True)
class Room:
    """How much an ingest may take.

    Attributes:
        memory_limit: Memory of the joins, such as "2GB"; beyond it they spill.
        temporary_limit: Most that may be spilled, such as "50GB"; None for what the disk holds.
        temporary_folder: Where to spill; None for inside the folder that is being written.
        workers: Threads; None for all cores that the process may use.
    """

    memory_limit: str
    temporary_limit: str | None
    temporary_folder: Path | None
    workers: int | None

    @contextmanager
    def database(self, folder: Path) -> Iterator[tuple[Any, Path]]:
        """Open a work database for what is written to `folder`; yields its connection and the folder to spill to.

        Raises:
            DataError: Memory and temporary folder together did not suffice.
        """
        import duckdb

        work = (self.temporary_folder or folder) / f".work-{os.getpid()}"
        work.mkdir(parents=True)
        try:
            con = open_work_database(work, self.workers, self.memory_limit, self.temporary_limit)
            try:
                yield con, work
            finally:
                con.close()
        except (
            duckdb.OutOfMemoryException,
            duckdb.IOException,
            duckdb.TransactionException,
            MemoryError,
        ) as error:
            raise self._exceeded(work, error) from None
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise self._exceeded(work, error) from None
            raise
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _exceeded(self, work: Path, error: BaseException) -> DataError:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        return DataError(
            f"ingest must have room for its joins. Received: {first}\n"
            f"  memory_limit = {self.memory_limit}, temporary_folder = {work.parent}, "
            f"temporary_limit = {self.temporary_limit or 'the disk'}\n"
            "  fix: raise memory_limit or temporary_limit, or set temporary_folder to a larger disk"
        )
