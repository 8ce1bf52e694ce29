"""Make docs/samples anew: two runs on the CPU default, one with planted defects, and their pictures.

    python tools/make_samples.py

Real runs of real cases. In the failing one, defects of `harness.defects` are planted in a few cases, so
that it is what a reader meets when a cache is wrong. Pictures need playwright and chromium (the extra
`browser`); without them only the reports are made.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from io import BytesIO
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = ROOT / "docs" / "samples"
WORK = ROOT / ".loadproof" / "samples"
CASES = {
    "cpu-default": "(synthetic and (n83 or n149 or n160)) or nvfp4 or planted",
    "failing": "(synthetic and not token and (n83 or n149 or n160) and not gate) or planted",
}
DEFECTS = {
    "synthetic-fp8-qkv-n149-k64-unequal-fp16-reference-memfd": "flipped-bit-in-padding",
    "synthetic-fp8-plain-n83-k57-bias-bf16-reference-memfd": "copied-by-value",
    "synthetic-fp8-qkv-n160-k64-equal-bias-bf16-reference-memfd-writable": "header-only-key",
    "synthetic-fp8-qkv-n160-k64-unequal-fp16-reference-memfd-writable": "store-into-shared-memory",
    "synthetic-fp8-qkv-n149-k57-unequal-bf16-reference-memfd-writable": "logical-width-lost",
}
PLUGIN = f"""
import dataclasses
from loadproof.harness.proof import Prover

DEFECTS = {DEFECTS!r}
original = Prover.prove

def prove(self, request):
    # Controls carry their own defect.
    defect = request.defect or DEFECTS.get(request.case.id)
    return original(self, dataclasses.replace(request, defect=defect))

Prover.prove = prove
"""
PICTURES = {
    "failing-light": ("failing.html", "light", 1280, 900),
    "failing-dark": ("failing.html", "dark", 1280, 900),
    "cpu-default": ("cpu-default.html", "light", 1280, 900),
}


def main() -> None:
    SAMPLES.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    (WORK / "planted_defects.py").write_text(PLUGIN)
    _run("cpu-default")
    _run("failing", "-p", "planted_defects")
    failing = (SAMPLES / "failing.html").read_text()
    if absent := [case for case in DEFECTS if case not in failing]:
        sys.exit(f"no such case, so nothing was planted in it: {', '.join(absent)}")
    if importlib.util.find_spec("playwright") and (chromium := shutil.which("chromium")):
        _photograph(chromium)


def _run(name: str, *plugins: str) -> None:
    out = (WORK / name).relative_to(ROOT)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *plugins]
    chosen = ["-k", CASES[name], "--loadproof-device", "cpu", "--loadproof-out", str(out)]
    paths = os.pathsep.join([str(WORK), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [*command, "cases/layers", "cases/capability", "cases/controls", *chosen],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": paths},
        check=False,  # the failing one fails
    )
    for source, suffix in (("report.html", "html"), ("validation.md", "md")):
        shutil.copy(WORK / name / source, SAMPLES / f"{name}.{suffix}")


def _photograph(chromium: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, (report, theme, width, height) in PICTURES.items():
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
            page.goto((SAMPLES / report).as_uri())
            shot = Image.open(BytesIO(page.screenshot()))
            # A page has few colours; a palette makes a third of the file.
            shot.convert("RGB").quantize(96).save(SAMPLES / f"{name}.png", optimize=True)
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
