"""Where the library is looked for, and what is said where it is missing or refuses."""

import pytest

from bathyal.engine.backends.onednn import OneDnnBackend, library
from bathyal.engine.backends.onednn.handles import Engine, check
from bathyal.memory.errors import DeviceError
from tests.support.onednn_library import onednn_backend

onednn_backend()  # skips where there is none


def test_a_missing_library_says_how_to_get_it(monkeypatch, tmp_path):
    damaged = tmp_path / "libdnnl.so.3"
    damaged.write_text("no library")
    monkeypatch.setattr(library, "candidates", lambda: ["/nowhere/libdnnl.so.3", str(damaged)])
    with pytest.raises(DeviceError) as refused:
        OneDnnBackend()
    error = refused.value
    assert error.where == "onednn"
    assert "libdnnl.so.3" in error.expected
    assert "/nowhere/libdnnl.so.3" in error.actual
    assert str(damaged) in error.actual
    assert "pip install onednn-cpu-gomp" in error.hint


def test_a_library_without_the_functions_says_so(monkeypatch):
    monkeypatch.setattr(library, "candidates", lambda: ["libc.so.6"])
    with pytest.raises(DeviceError, match="dnnl_"):
        OneDnnBackend()


def test_the_path_in_the_environment_comes_first(monkeypatch):
    monkeypatch.setenv(library.PATH_VARIABLE, "/my/libdnnl.so.3")
    assert library.candidates()[0] == "/my/libdnnl.so.3"
    monkeypatch.delenv(library.PATH_VARIABLE)
    assert "/my/libdnnl.so.3" not in library.candidates()
    assert library.candidates()[-1] == library.SONAME


def test_refusals_of_the_library_are_errors_with_their_status():
    check(0, "anything")
    with pytest.raises(DeviceError, match=r"status 3 \(unimplemented\)"):
        check(3, "convolution_forward")
    with pytest.raises(DeviceError, match="status 99"):
        check(99, "convolution_forward")
    engine = Engine()
    with pytest.raises(DeviceError, match="binary"):
        # Shapes that cannot be added.
        shapes = [(2, 3, 4, 5), (9, 9, 9, 9), (2, 3, 4, 5)]
        engine.describe("binary", 131056, *(engine.describe_plain(s) for s in shapes), engine.attributes)
    with pytest.raises(DeviceError, match="reorder"):
        engine.reorder(engine.describe_plain((2, 3)), engine.describe_plain((3, 2)))
