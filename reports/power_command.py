"""`loadproof power`: plants every defect, and prints which check caught it."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadproof.harness.errors import InvalidInput

from .json_option import Json

if TYPE_CHECKING:
    from loadproof.harness.power import Detection


def power(
    defect: Annotated[list[str] | None, typer.Option(help="Plant this one; default: all.")] = None,
    as_json: Json = False,
) -> None:
    """Plant defects on the CPU default, each in a run of its own: 0 all are caught, 1 one is not."""
    # Here alone, since it imports torch.
    from loadproof.harness.defects import DEFECTS
    from loadproof.harness.power import detections

    for name in defect or ():
        if name not in DEFECTS:
            remedy = f"Choose from: {', '.join(sorted(DEFECTS))}."
            raise InvalidInput("--defect", expected="a planted defect", found=repr(name), remedy=remedy)
    found = []
    for detection in detections(defect or DEFECTS):
        found.append(detection)
        if not as_json:
            typer.echo(_line(detection))
    caught = sum(detection.caught for detection in found)
    if as_json:
        told = [_detection_json(detection) for detection in found]
        typer.echo(json.dumps({"caught": caught, "planted": len(found), "defects": told}, indent=2))
    else:
        typer.echo(f"caught {caught}/{len(found)}, CPU DEFAULT ONLY: the defects are planted on the CPU")
    raise typer.Exit(0 if caught == len(found) else 1)


def _line(detection: "Detection") -> str:
    control = detection.control
    word = "CAUGHT" if detection.caught else "NOT CAUGHT"
    line = f"{word:<11} {control.name:<34} {control.check} says {control.said}"
    if not control.caught:
        line += f", should say {control.due}"
    if not detection.holds_without:
        line += "; without the defect the case does not hold either"
    return line


def _detection_json(detection: "Detection") -> dict[str, Any]:
    return {
        "caught": detection.caught,
        "holds_without": detection.holds_without,
        **detection.control.model_dump(mode="json"),
    }
