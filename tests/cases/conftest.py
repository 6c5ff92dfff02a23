import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cases.inputs import Case, run_script
from tests.cases.served import Student, make_student


@pytest.fixture(scope="session")
def scripts(tmp_path_factory) -> Callable[[str], Path]:
    """Run a script of the catalogue once a session; return the folder of its input, which must not be changed."""
    made: dict[str, Path] = {}

    def run(name: str) -> Path:
        if name not in made:
            made[name] = run_script(name, tmp_path_factory.mktemp(Path(name).stem) / "input")
        return made[name]

    return run


@pytest.fixture
def case(scripts, tmp_path) -> Callable[..., Case]:
    """Return the input of a script with a plain schema; `part` is a folder of it, `own` copies it to be changed."""
    counter = iter(range(100))

    def make(name: str, part: str = "", own: bool = False) -> Case:
        folder = scripts(name) / part
        number = next(counter)
        if own:
            folder = Path(shutil.copytree(folder, tmp_path / f"input-{number}"))
        return Case(folder, tmp_path / f"out-{number}")

    return make


@pytest.fixture(scope="session")
def student(scripts, tmp_path_factory) -> Student:
    """The base world with a student that was trained on it; nothing of it must be changed."""
    folder = tmp_path_factory.mktemp("student")
    logs = Path(shutil.copytree(scripts("tr01_label_store.py"), folder / "logs"))
    return make_student(Case(logs, folder / "out"))
