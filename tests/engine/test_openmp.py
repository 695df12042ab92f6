import os
import subprocess
import sys

from bathyal.engine.openmp import VARIABLE, wait_passively


def test_the_policy_is_set_but_never_over_the_users(monkeypatch, tmp_path):
    monkeypatch.delenv(VARIABLE)
    wait_passively(tmp_path / "nothing")
    assert os.environ[VARIABLE] == "passive"
    monkeypatch.setenv(VARIABLE, "active")
    wait_passively(tmp_path / "nothing")
    assert os.environ[VARIABLE] == "active"


def test_too_late_is_said(monkeypatch, tmp_path, caplog):
    maps = tmp_path / "maps"
    maps.write_text("7f00-7f01 r-xp 00000000 00:00 0 /usr/lib/libgomp.so.1\n")
    monkeypatch.delenv(VARIABLE)
    wait_passively(maps)
    assert "too late" in caplog.text


def test_importing_the_package_is_enough():
    environment = {k: v for k, v in os.environ.items() if k != VARIABLE}
    code = "import bathyal, os; print(os.environ['OMP_WAIT_POLICY'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120)
    assert (done.stdout, done.stderr) == ("passive\n", "")
