"""Provenance of the libraries that compute: RECORD's hash against that of the file on disk."""

import base64
import hashlib
import sys
from pathlib import Path

import pytest

from loadproof.fixtures import libraries
from loadproof.fixtures.libraries import describe_libraries
from loadproof.harness.vllm_library import LIBRARY_VARIABLE

CONTENT = b"a kernel"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with one library; returns the library's path."""
    library = tmp_path / "kernels" / "lib.so"
    library.parent.mkdir()
    library.write_bytes(CONTENT)
    digest = base64.urlsafe_b64encode(hashlib.sha256(CONTENT).digest()).decode().rstrip("=")
    info = tmp_path / "kernels-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kernels\nVersion: 1.0\n")
    (info / "RECORD").write_text(f"kernels/lib.so,sha256={digest},{len(CONTENT)}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setitem(libraries._COMPUTING, "cpu", {"kernels": ("kernels/lib.so",), "absent": ("x.so",)})
    return library


def test_an_untouched_library_has_its_records_hash(installed: Path) -> None:
    (found,) = describe_libraries("cpu")
    assert found["equal"]
    assert found["record_sha256"] == found["disk_sha256"] == hashlib.sha256(CONTENT).hexdigest()
    assert (found["version"], found["bytes"]) == ("1.0", len(CONTENT))


def test_a_changed_library_is_told(installed: Path) -> None:
    installed.write_bytes(b"A kernel")
    (found,) = describe_libraries("cpu")
    assert not found["equal"]
    assert found["disk_sha256"] == hashlib.sha256(b"A kernel").hexdigest()


def test_a_missing_library_is_told(installed: Path) -> None:
    installed.unlink()
    (found,) = describe_libraries("cpu")
    assert (found["equal"], found["disk_sha256"]) == (False, "no such file")


@pytest.mark.parametrize(
    "record", ["\nkernels/lib.so\n\n", "kernels/lib.so,,\n", "kernels/lib.so,md5=00,1\n"]
)
def test_a_record_that_promises_no_sha256_is_told(installed: Path, record: str) -> None:
    (installed.parent.parent / "kernels-1.0.dist-info" / "RECORD").write_text(record)
    for there in (True, False):
        if not there:
            installed.unlink()
        (found,) = describe_libraries("cpu")
        assert (found["equal"], found["record_sha256"]) == (False, None)


@pytest.mark.parametrize("wheel", [True, False])
def test_a_vllm_that_is_named_and_not_installed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wheel: bool
) -> None:
    """It is the one that runs, so its hash is the one that counts."""
    library = tmp_path / "vllm" / "_C_stable_libtorch.abi3.so"
    library.parent.mkdir()
    library.write_bytes(CONTENT)
    if wheel:
        digest = base64.urlsafe_b64encode(hashlib.sha256(CONTENT).digest()).decode().rstrip("=")
        (info := tmp_path / "vllm-0.33.0.dist-info").mkdir()
        (info / "RECORD").write_text(f"vllm/{library.name},sha256={digest},{len(CONTENT)}\n")
    monkeypatch.setitem(libraries._COMPUTING, "cuda", {})
    monkeypatch.setenv(LIBRARY_VARIABLE, str(library))
    (found,) = describe_libraries("cuda")
    assert found["disk_sha256"] == hashlib.sha256(CONTENT).hexdigest()
    assert (found["file"], found["version"]) == (
        "vllm/_C_stable_libtorch.abi3.so",
        "0.33.0" if wheel else "of no wheel",
    )
    assert (found["record_sha256"], found["equal"]) == (
        (found["disk_sha256"], True) if wheel else (None, False)
    )
