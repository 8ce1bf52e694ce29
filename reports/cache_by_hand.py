"""What `loadproof daemon` and `loadproof attach` do: the weight cache by hand."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import typer

from loadproof.harness.cache.arena import transport_of
from loadproof.harness.cache.client import Attached, CacheClient
from loadproof.harness.cache.key import make_key
from loadproof.harness.cache.manifest import Entry
from loadproof.harness.cache.socket_path import check_directory, check_length
from loadproof.harness.checkpoint.digest import sidecar_digest
from loadproof.harness.daemon import DaemonJob, Serving, serving
from loadproof.harness.errors import (
    ContentMismatch,
    InvalidInput,
    KeyMismatch,
)
from loadproof.harness.kernels import make_kernel, require_preprocessed
from loadproof.harness.tensor_bytes import sha256

from .checkpoint_layers import discovered, left_out, remembered
from .text import one_line

SHOWN_DIGITS = 12


class _Stopped(BaseException):
    """A signal asked the daemon to end."""


def daemon(checkpoint: Path, socket: Path, transport: str, kernel: str, as_json: bool) -> None:
    """Serve a checkpoint's FP8 layers until SIGTERM or Ctrl-C; prints when it is ready."""
    with _errors_typed(socket), _signals_stop():
        _require_usable(transport, kernel, socket)
        if socket.parent.exists():
            check_directory(socket.parent)
        layers = discovered(checkpoint)
        for line in left_out(checkpoint, layers):
            typer.echo(line, err=True)
        job = DaemonJob(
            checkpoint=checkpoint,
            layers=tuple(layers),
            socket=socket,
            transport=transport,
            kernel=kernel,
        )
        with serving(job) as ready:
            facts = _ready(job, ready)
            typer.echo(json.dumps(facts) if as_json else _ready_line(facts))
            while True:
                signal.pause()


def attach(checkpoint: Path, socket: Path, transport: str, kernel: str, as_json: bool) -> None:
    """Attach, check every tensor's bytes and print them; leaves with status 1 where key or bytes differ."""
    with _errors_typed(socket):
        _require_usable(transport, kernel, socket)
        content = sidecar_digest(checkpoint)
        layers, backend = remembered(checkpoint, content), make_kernel(kernel)
        require_preprocessed(backend, f"{layers[0].name} and {len(layers) - 1} more")
        key = make_key(checkpoint, content, layers, backend)
        client = CacheClient(socket)
        try:
            attached = client.attach(key, transport)
            try:
                _require_content(attached)
                _print_attached(attached, socket, transport, content, as_json)
            finally:
                attached.arena.close()
        finally:
            client.close()


def _require_usable(transport: str, kernel: str, socket: Path) -> None:
    # Each raises InvalidInput or SocketPathTooLong, before anything is loaded.
    transport_of(transport)
    make_kernel(kernel)
    check_length(socket)


@contextmanager
def _errors_typed(socket: Path) -> Iterator[None]:
    # What the operating system refuses is one line as well; a difference between both sides is exit status 1.
    try:
        yield
    except (KeyMismatch, ContentMismatch) as error:
        typer.echo(f"loadproof: {one_line(str(error))}", err=True)
        raise typer.Exit(1) from error
    except OSError as error:
        raise InvalidInput(
            error.filename or socket,
            expected="a path that can be used",
            found=error.strerror or type(error).__name__,
            remedy="Check its permissions, or choose another path.",
        ) from error


@contextmanager
def _signals_stop() -> Iterator[None]:
    signals = (signal.SIGTERM, signal.SIGINT)

    def stop(signum: int, frame: object) -> NoReturn:
        # A second signal must not interrupt the clearing up.
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        raise _Stopped

    before = {each: signal.signal(each, stop) for each in signals}
    try:
        yield
    except _Stopped:
        pass
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _ready(job: DaemonJob, ready: Serving) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "socket": str(job.socket),
        "transport": job.transport,
        "layers": len(job.layers),
        "arena_bytes": ready.manifest.arena_bytes,
        "content": ready.key["content"],
    }


def _ready_line(facts: dict[str, Any]) -> str:
    return (
        f"ready: process {facts['pid']} serves {facts['layers']} layers ({facts['arena_bytes']} bytes, "
        f"{facts['transport']}) at {facts['socket']}, content {facts['content'][:SHOWN_DIGITS]}"
    )


def _require_content(attached: Attached) -> None:
    for entry in attached.manifest.entries:
        found = sha256(attached.arena.read(entry.offset, entry.nbytes))
        if found != entry.sha256:
            raise ContentMismatch(
                entry.name,
                expected=f"sha256 {entry.sha256}",
                found=f"sha256 {found}",
                remedy="Restart the daemon: its memory was written to.",
            )


def _print_attached(attached: Attached, socket: Path, transport: str, content: str, as_json: bool) -> None:
    entries = attached.manifest.entries
    if as_json:
        facts = {
            "pid": attached.client.daemon_pid,
            "socket": str(socket),
            "transport": transport,
            "arena_bytes": attached.manifest.arena_bytes,
            "content": content,
            "tensors": [_entry_json(entry) for entry in entries],
        }
        typer.echo(json.dumps(facts, indent=2))
        return
    header = ("tensor", "dtype", "shape", "offset", "sha256")
    rows = [header, *(_row(entry) for entry in entries)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    typer.echo(f"attached to process {attached.client.daemon_pid}: {len(entries)} tensors verified", err=True)


def _entry_json(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "dtype": entry.dtype,
        "shape": list(entry.shape),
        "offset": entry.offset,
        "sha256": entry.sha256,
    }


def _row(entry: Entry) -> tuple[str, ...]:
    shape = "x".join(map(str, entry.shape)) or "scalar"
    return (one_line(entry.name), entry.dtype, shape, str(entry.offset), entry.sha256[:SHOWN_DIGITS])
