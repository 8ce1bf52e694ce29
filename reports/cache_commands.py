"""`loadproof daemon` and `loadproof attach`; torch is imported once one of them runs, by no other command."""

from pathlib import Path
from typing import Annotated

import typer

from loadproof.harness.backends import BACKENDS

from .json_option import Json

_TRANSPORTS = ", ".join(name for on in BACKENDS.values() for name in on.transports)

Checkpoint = Annotated[Path, typer.Argument(help="Folder of a ModelOpt FP8 checkpoint.")]
Socket = Annotated[
    Path, typer.Option("--socket", help="The daemon's Unix socket, in a folder of yours with mode 0700.")
]
Transport = Annotated[
    str, typer.Option("--transport", help=f"How the memory is shared: {_TRANSPORTS} (cuda: on a GPU).")
]
KernelName = Annotated[
    str, typer.Option("--kernel", help="Backend that will multiply; both sides must name the same.")
]


def daemon(
    checkpoint: Checkpoint,
    socket: Socket,
    transport: Transport = "memfd",
    kernel: KernelName = "reference",
    as_json: Json = False,
) -> None:
    """Load a checkpoint's FP8 layers once and serve their memory until SIGTERM or Ctrl-C."""
    from . import cache_by_hand

    cache_by_hand.daemon(checkpoint, socket, transport, kernel, as_json)


def attach(
    checkpoint: Checkpoint,
    socket: Socket,
    transport: Transport = "memfd",
    kernel: KernelName = "reference",
    as_json: Json = False,
) -> None:
    """Attach to a daemon and check every tensor's bytes; exit status 1 where key or bytes differ."""
    from . import cache_by_hand

    cache_by_hand.attach(checkpoint, socket, transport, kernel, as_json)
