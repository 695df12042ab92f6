import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bathyal.memory.errors import ConfigError
from bathyal.memory.tiers.spill_folder import check_spill_folder, default_spill_folder, memory_file_system
from tests.support.small_file_systems import mount_ext4, mount_overlay, mount_tmpfs, remount_read_only

MIB = 2**20

CHECK_AS_NOBODY = """
import os, sys
from pathlib import Path
from bathyal.memory.tiers.spill_folder import check_spill_folder
from bathyal.memory.errors import ConfigError
os.setresuid(65534, 65534, 65534)
try:
    check_spill_folder(Path(sys.argv[1]))
except ConfigError as error:
    sys.exit(str(error))
"""


def test_a_folder_on_a_disk_will_do(tmp_path):
    if memory_file_system(tmp_path):
        pytest.skip("pytest's folder is in memory here")
    check_spill_folder(tmp_path)


def test_memory_is_refused_and_the_option_named(tmp_path):
    with mount_tmpfs(tmp_path, MIB) as mount, pytest.raises(ConfigError, match="--spill-dir") as caught:
        check_spill_folder(mount)
    assert "tmpfs" in caught.value.actual
    assert str(mount) in caught.value.where


def test_an_overlay_is_a_disk(tmp_path):
    with mount_overlay(tmp_path) as mount:
        check_spill_folder(mount)


def test_a_read_only_disk_is_refused(tmp_path):
    with mount_ext4(tmp_path, MIB) as mount:
        check_spill_folder(mount)
        remount_read_only(mount)
        with pytest.raises(ConfigError, match="Read-only file system"):
            check_spill_folder(mount)


def test_what_is_no_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="no such folder"):
        check_spill_folder(tmp_path / "gone")
    with pytest.raises(ConfigError, match="but a file"):
        check_spill_folder(tmp_path / "file")


def test_a_folder_of_another_user_is_refused():
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    # Not below pytest's own folder, which no other user may enter.
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        done = subprocess.run([sys.executable, "-c", CHECK_AS_NOBODY, name], capture_output=True, text=True)
    assert "Permission denied: no right to write for user 65534" in done.stderr
    assert "--spill-dir" in done.stderr


def test_the_default_is_the_first_that_will_do(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    second.mkdir()
    fallbacks = (str(second), "/")
    assert default_spill_folder({"TMPDIR": str(first)}, fallbacks) == second
    first.mkdir()
    assert default_spill_folder({"TMPDIR": str(first)}, fallbacks) == first
    assert default_spill_folder({}, fallbacks) == second


def test_the_default_skips_memory(tmp_path):
    with mount_tmpfs(tmp_path, MIB) as mount:
        assert default_spill_folder({"TMPDIR": str(mount)}, (str(tmp_path),)) == tmp_path


def test_a_folder_that_the_environment_names_is_never_passed_over(tmp_path):
    named = {"BATHYAL_SPILL_DIR": str(tmp_path / "gone"), "TMPDIR": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"\$BATHYAL_SPILL_DIR"):
        default_spill_folder(named, ())
    named["BATHYAL_SPILL_DIR"] = str(tmp_path)
    assert default_spill_folder(named, ()) == tmp_path


def test_where_nothing_will_do_every_reason_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--spill-dir") as caught:
        default_spill_folder({"TMPDIR": str(tmp_path / "gone")}, (str(tmp_path / "file"),))
    assert f"{tmp_path / 'gone'}: no such folder" in caught.value.actual
    assert "but a file" in caught.value.actual


def test_the_file_system_of_a_folder_that_is_gone_is_an_error():
    with pytest.raises(OSError, match="No such file"):
        memory_file_system(Path("/nowhere/at/all"))
