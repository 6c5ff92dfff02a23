"""How the compiled library is built, chosen and refused."""

import ctypes
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from opengem.errors import BackendUnavailable
from opengem.ops.jagged_attention import jagged_attention
from opengem.ops.native import library
from opengem.ops.native.self_test import fault_of
from tests.ops.rows import offsets_of

ROOT = Path(__file__).parents[2]
FOLDER = Path("src/opengem/ops/native")


def builder():
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path):
    """A source tree with the C file alone."""
    (tmp_path / FOLDER).mkdir(parents=True)
    shutil.copy(ROOT / FOLDER / "attention.c", tmp_path / FOLDER)
    return tmp_path


@pytest.fixture
def fresh(monkeypatch):
    """The choice of the library is made anew, within the test and after it."""
    library.loaded.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    library.loaded.cache_clear()


def built(folder):
    return sorted(f.name for f in (folder / FOLDER).glob("*.so"))


@pytest.mark.slow
@pytest.mark.skipif(builder().compiler() is None, reason="no C compiler here")
def test_every_level_is_built_and_passes_its_self_test(tree):
    levels = ("portable", "v4") if library._processor_flags() is not None else ("portable",)
    made = builder().build(tree)
    assert sorted(p.name for p in made) == built(tree) == [f"attention_{level}.so" for level in levels]
    for level in levels:
        flags = library._processor_flags()
        if flags is None or library._LEVELS[level] <= flags:
            opened = ctypes.CDLL(str(tree / FOLDER / f"attention_{level}.so"))
            assert fault_of(opened) == ""


def test_without_a_compiler_one_line_says_so_and_nothing_is_built(tree, monkeypatch, capsys):
    monkeypatch.setenv("CC", "/nonexistent")
    assert builder().build(tree) == []
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tree))
    assert builder().build(tree) == []
    line = "opengem: no C compiler ($CC, cc, gcc, clang): attention runs on torch alone\n"
    assert capsys.readouterr().err == line * 2
    assert built(tree) == []


def test_a_compiler_that_fails_leaves_no_library_and_a_line_for_each_level(tree, monkeypatch, capsys):
    (tree / FOLDER / "attention_portable.so").write_bytes(b"stale")
    monkeypatch.setenv("CC", "false")
    assert builder().build(tree) == []
    assert "false made no attention library portable" in capsys.readouterr().err
    assert built(tree) == []


def test_import_neither_loads_nor_builds():
    code = """
import subprocess
def refuse(*_a, **_k): raise AssertionError("started a process")
subprocess.Popen.__init__ = refuse
import opengem
import opengem.ops.jagged_attention, opengem.ops.block_attention, opengem.ops.gdpa
assert "attention_" not in open("/proc/self/maps").read()
"""
    if not Path("/proc/self/maps").exists():
        pytest.skip("needs /proc")
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(bool(library.unavailable()), reason=library.unavailable())
def test_the_portable_level_serves_a_lesser_processor(fresh):
    if library._processor_flags() is None:
        pytest.skip("one level only here")
    x = torch.randn(80, 2, 32)
    offsets = offsets_of([3, 77])
    expected = jagged_attention(x, x, x, offsets, backend="native")
    library.loaded.cache_clear()
    fresh.setattr(library, "_processor_flags", lambda: library._LEVELS["portable"])
    opened, reason = library.loaded()
    assert not reason
    assert opened._name.endswith("attention_portable.so")
    torch.testing.assert_close(jagged_attention(x, x, x, offsets, backend="native"), expected)


def test_what_cannot_serve_is_refused_with_the_reason(fresh, tmp_path):
    x, offsets = torch.randn(5, 2, 32), offsets_of([5])

    def refused(match):
        library.loaded.cache_clear()
        with pytest.raises(BackendUnavailable, match=match):
            jagged_attention(x, x, x, offsets, backend="native")
        jagged_attention(x, x, x, offsets)  # auto finds another

    here = Path(library.__file__).parent
    fresh.setattr(library, "__file__", str(tmp_path / "library.py"))
    refused("the library was not built")
    (tmp_path / "attention_portable.so").write_bytes(b"no library")
    fresh.setattr(library, "_processor_flags", lambda: set())
    refused("runs none of the levels that were built: portable")
    fresh.setattr(library, "_processor_flags", lambda: None)
    refused("attention_portable.so cannot be loaded")
    if (here / "attention_portable.so").exists():
        shutil.copy(here / "attention_portable.so", tmp_path / "again")
        (tmp_path / "again").replace(tmp_path / "attention_portable.so")
        fresh.setattr(library, "fault_of", lambda _: "softmax: dq is off by 1")
        refused("failed its self-test: softmax: dq is off by 1")


def test_other_operands_are_refused_with_the_reason():
    offsets = offsets_of([5])
    for x, match in (
        (torch.zeros(5, 2, 32, dtype=torch.float64), "it computes in float32, got torch.float64"),
        (torch.zeros(5, 2, 24), "a head must be one of"),
    ):
        with pytest.raises(BackendUnavailable, match=match):
            jagged_attention(x, x, x, offsets, backend="native")
