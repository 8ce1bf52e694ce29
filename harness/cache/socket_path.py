"""Where the socket lies: a directory of our own, mode 0700; the socket 0600, placed by rename."""

import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import DaemonRunning, DaemonUnavailable, DaemonUnresponsive, SocketPathTooLong, UnsafeSocket
from .wire import peer_pid

MAX_SOCKET_PATH_BYTES = 107
"""sockaddr_un holds 108 bytes with the final NUL."""


def check_length(path: Path) -> None:
    """Raise SocketPathTooLong before anything else is done."""
    length = len(os.fsencode(path))
    if length > MAX_SOCKET_PATH_BYTES:
        raise SocketPathTooLong(
            path,
            expected=f"at most {MAX_SOCKET_PATH_BYTES} bytes",
            found=f"{length} bytes",
            remedy="Choose a shorter path, for instance under /tmp.",
        )


def check_directory(directory: Path) -> None:
    """Raise UnsafeSocket unless `directory` is ours alone (owner, mode 0700, not a link)."""
    status = directory.lstat()
    _require_owner(directory, status)
    if not stat.S_ISDIR(status.st_mode) or stat.S_IMODE(status.st_mode) & 0o077:
        raise UnsafeSocket(
            directory,
            expected="a directory with mode 0700",
            found=stat.filemode(status.st_mode),
            remedy="Choose a directory of your own, made with `mkdir -m 700`.",
        )


def check_socket(path: Path) -> None:
    """The engine's look before it connects.

    Raises:
        DaemonUnavailable: nothing is there.
        UnsafeSocket: a link, another kind of file, or somebody else's.
    """
    check_length(path)
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _unavailable(path, "no such file") from error
    except OSError as error:
        raise _unusable(path, error) from error
    check_directory(path.parent)
    _require_owner(path, status)
    if not stat.S_ISSOCK(status.st_mode) or stat.S_IMODE(status.st_mode) & 0o077:
        raise UnsafeSocket(
            path,
            expected="a socket with mode 0600",
            found=stat.filemode(status.st_mode),
            remedy="Remove what is in its place, if it is yours, and start the daemon again.",
        )


def connect(path: Path, timeout: float) -> socket.socket:
    """Connect to the daemon at `path`, whose user must be ours.

    Raises:
        DaemonUnresponsive: it does not accept; it may be stopped, with its queue full.
        As `check_socket`, otherwise.
    """
    check_socket(path)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        connection.connect(str(path))
        peer_pid(connection)
    except (ConnectionRefusedError, FileNotFoundError) as error:
        connection.close()
        raise _unavailable(path, "nobody listening") from error
    except (TimeoutError, BlockingIOError) as error:
        connection.close()
        raise DaemonUnresponsive(
            path,
            expected=f"a daemon that accepts within {timeout:g} s",
            found="a full queue",
            remedy="Check whether the daemon is stopped or overloaded; restart it.",
        ) from error
    except OSError as error:
        connection.close()
        raise _unusable(path, error) from error
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A listening socket at `path`; on exit the file goes, unless it is a successor's by then.

    Raises:
        DaemonRunning: a live daemon serves this path.
        SocketPathTooLong, UnsafeSocket: see the checks above.
    """
    check_length(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_directory(path.parent)
            inode = _place(listener, path)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            yield listener
        finally:
            _remove(path, inode)
    finally:
        listener.close()


def _place(listener: socket.socket, path: Path) -> int:
    # The lock covers only this critical section; whether a daemon lives is asked of its socket.
    lock = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _require_vacant(path)
        temporary = path.with_name(".loadproof.new")
        temporary.unlink(missing_ok=True)
        # By the directory's descriptor, since the temporary name may be too long where the final one fits.
        address = f"/proc/self/fd/{lock}/{temporary.name}"
        before = os.umask(0o177)
        try:
            listener.bind(address)
        finally:
            os.umask(before)
        listener.listen(64)
        inode = temporary.lstat().st_ino
        temporary.rename(path)
        return inode
    finally:
        os.close(lock)


def _require_vacant(path: Path) -> None:
    try:
        connection = connect(path, timeout=1.0)
    except DaemonUnavailable:
        return
    except DaemonUnresponsive:
        owner = "a daemon that does not accept"
    else:
        owner = f"process {peer_pid(connection)}"
        connection.close()
    raise DaemonRunning(
        path,
        expected="no live daemon",
        found=owner,
        remedy="Use that daemon, stop it, or choose another path.",
    )


def _remove(path: Path, inode: int) -> None:
    try:
        if path.lstat().st_ino == inode:
            path.unlink()
    except FileNotFoundError:
        pass


def _require_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise UnsafeSocket(
            path,
            expected=f"owner {os.geteuid()}",
            found=f"owner {status.st_uid}",
            remedy="Use a path that belongs to the user who runs the engine.",
        )


def _unusable(path: Path, error: OSError) -> UnsafeSocket:
    return UnsafeSocket(
        path,
        expected="a stream socket, or a place for one, in a directory of our own",
        found=error.strerror or type(error).__name__,
        remedy="Remove what is in its place, if it is yours, or choose another path.",
    )


def _unavailable(path: Path, found: str) -> DaemonUnavailable:
    return DaemonUnavailable(
        path,
        expected="a listening weight-cache daemon",
        found=found,
        remedy="Start one with `loadproof daemon`, or load from disk.",
    )
