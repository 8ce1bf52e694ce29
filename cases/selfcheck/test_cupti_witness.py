"""The kernel witness against a libcupti of the test's own, which calls back as the real one does."""

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from loadproof.harness.errors import LaunchError
from loadproof.harness.witness import libcupti
from loadproof.harness.witness.cupti import KernelWitness, demangled

CUPTI_HEADERS = Path("/usr/local/cuda/include")
SOURCE = """
#include <stddef.h>
#include <stdint.h>
typedef struct {
    int site; const char *function; const void *params; void *result; const char *symbol;
    void *context; uint32_t context_uid; uint64_t *correlation; uint32_t correlation_id;
} Data;
typedef void (*Callback)(void *, int, uint32_t, const void *);
static Callback subscribed;
static unsigned char enabled[1024];
int unsubscribed, refuse_enabling;
#define NAME(number, text) if (id == number) { *name = text; return 0; }
int cuptiGetCallbackName(int domain, uint32_t id, const char **name) {
    NAME(307, "cuLaunchKernel") NAME(442, "cuLaunchKernel_ptsz")
    NAME(COOPERATIVE, "cuLaunchCooperativeKernel") NAME(478, "cuLaunchCooperativeKernel_ptsz")
    NAME(652, "cuLaunchKernelEx") NAME(653, "cuLaunchKernelEx_ptsz")
    NAME(514, "cuGraphLaunch") NAME(515, "cuGraphLaunch_ptsz")
    return 1;
}
int cuptiGetResultString(int status, const char **words) { *words = "WORDS_FOR_IT"; return 0; }
int cuptiSubscribe(void **handle, Callback callback, void *user) {
    if (subscribed) return 39;
    subscribed = callback; *handle = &subscribed; return 0;
}
int cuptiUnsubscribe(void *handle) {
    if (handle != &subscribed) return 1;
    subscribed = NULL; unsubscribed++;
    for (int i = 0; i < 1024; i++) enabled[i] = 0;
    return 0;
}
int cuptiEnableCallback(uint32_t on, void *handle, int domain, uint32_t id) {
    if (handle != &subscribed || domain != 1 || refuse_enabling) return 7;
    enabled[id] = on; return 0;
}
int launch(int domain, uint32_t id, int site, const char *symbol) {
    uint64_t word = 0;
    Data data = {site, "cuSomething", NULL, NULL, symbol, NULL, 0xffffffffu, &word, 1};
    if (!subscribed || !enabled[id]) return 0;
    subscribed(NULL, domain, id, &data);
    return 1;
}
int subscribe_as_a_profiler(void) { subscribed = (Callback)1; return 0; }
"""

Build = Callable[..., ctypes.CDLL]


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """Compiles the stub, and lets the witness find it first."""

    def made(**defines: int) -> ctypes.CDLL:
        if not shutil.which("gcc"):
            pytest.skip("no gcc to compile a libcupti of the test's own")
        source, library = tmp_path / "cupti.c", tmp_path / "libcupti.so"
        source.write_text(SOURCE)
        given = {"COOPERATIVE": 477} | defines
        flags = [f"-D{name}={value}" for name, value in given.items()]
        subprocess.run(["gcc", "-shared", "-fPIC", *flags, "-o", library, source], check=True)
        monkeypatch.setattr(libcupti, "candidates", lambda: iter([(str(library), ctypes.DEFAULT_MODE)]))
        stub = ctypes.CDLL(str(library))
        stub.launch.argtypes = (ctypes.c_int, ctypes.c_uint32, ctypes.c_int, ctypes.c_char_p)
        return stub

    return made


@pytest.fixture
def stub(build: Build) -> ctypes.CDLL:
    return build()


def counter(stub: ctypes.CDLL, name: str) -> ctypes.c_int:
    return ctypes.c_int.in_dll(stub, name)


GEMM = b"_ZN7cutlass13device_kernelIiEEvT_"
GEMM_NAME = "void cutlass::device_kernel<int>(int)"


def test_kernels_are_named_once_in_order_of_first_use(stub: ctypes.CDLL) -> None:
    with KernelWitness() as witness:
        for symbol in (b"nvjet_qqtst_128x128", GEMM, b"nvjet_qqtst_128x128", GEMM):
            assert stub.launch(1, 307, 0, symbol)
        assert witness.kernels == ["nvjet_qqtst_128x128", GEMM_NAME]
    assert witness.kernels == ["nvjet_qqtst_128x128", GEMM_NAME]
    assert witness.graph_launches == 0


@pytest.mark.parametrize("number", sorted(libcupti.KERNEL_LAUNCHES))
def test_every_way_to_launch_is_seen(stub: ctypes.CDLL, number: int) -> None:
    with KernelWitness() as witness:
        assert stub.launch(1, number, 0, b"kernel")
    assert witness.kernels == ["kernel"]


@pytest.mark.parametrize("number", sorted(libcupti.GRAPH_LAUNCHES))
def test_a_graph_is_counted_and_names_no_kernel(stub: ctypes.CDLL, number: int) -> None:
    with KernelWitness() as witness:
        assert stub.launch(1, number, 0, None)
        assert stub.launch(1, number, 1, None)
    assert (witness.kernels, witness.graph_launches) == ([], 1)


def test_only_the_entry_of_a_driver_call_counts(stub: ctypes.CDLL) -> None:
    with KernelWitness() as witness:
        assert stub.launch(1, 307, 1, b"at-the-exit")
        assert stub.launch(2, 307, 0, b"of-the-runtime")
        assert not stub.launch(1, 308, 0, b"not-a-launch")
    assert witness.kernels == []


def test_nothing_is_seen_before_or_after(stub: ctypes.CDLL) -> None:
    assert not stub.launch(1, 307, 0, b"before")
    with KernelWitness() as witness:
        pass
    assert not stub.launch(1, 307, 0, b"after")
    assert witness.kernels == []
    assert counter(stub, "unsubscribed").value == 1


def test_unsubscribed_when_the_block_raises_and_its_error_stays(stub: ctypes.CDLL) -> None:
    def block() -> None:
        with KernelWitness():
            assert stub.launch(1, 307, 0, None)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()
    assert counter(stub, "unsubscribed").value == 1


def test_failure_in_a_callback_stays_there_and_is_told_at_the_end(stub: ctypes.CDLL) -> None:
    witness = KernelWitness()

    def block() -> None:
        with witness:
            assert stub.launch(1, 307, 0, None)
            assert stub.launch(1, 307, 0, b"the-next")

    with pytest.raises(LaunchError, match=r"1 that were not; the first: .*cuLaunchKernel without a symbol"):
        block()
    assert witness.kernels == ["the-next"]
    assert [type(failure) for failure in witness.failures] == [ValueError]
    assert counter(stub, "unsubscribed").value == 1


def test_interrupt_in_a_callback_is_not_lost(stub: ctypes.CDLL) -> None:
    class Interrupted(dict[bytes, None]):
        def setdefault(self, *_: object) -> None:
            raise KeyboardInterrupt

    witness = KernelWitness()
    witness._symbols = Interrupted()

    def block() -> None:
        with witness:
            assert stub.launch(1, 307, 0, b"kernel")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert counter(stub, "unsubscribed").value == 1


def test_second_witness_is_refused_and_the_first_goes_on(stub: ctypes.CDLL) -> None:
    with KernelWitness() as witness:
        with pytest.raises(LaunchError, match="the only CUPTI subscriber"), KernelWitness():
            pass
        assert stub.launch(1, 307, 0, b"kernel")
    assert witness.kernels == ["kernel"]


def test_a_profiler_is_not_unsubscribed(stub: ctypes.CDLL) -> None:
    stub.subscribe_as_a_profiler()
    with pytest.raises(LaunchError, match=r"torch\.profiler"), KernelWitness():
        pass
    assert counter(stub, "unsubscribed").value == 0


def test_refused_callback_ends_the_subscription(stub: ctypes.CDLL) -> None:
    counter(stub, "refuse_enabling").value = 1
    with pytest.raises(LaunchError, match="cuptiEnableCallback to succeed, found status 7: WORDS_FOR_IT"):
        KernelWitness().__enter__()
    assert counter(stub, "unsubscribed").value == 1


def test_library_that_numbers_its_callbacks_otherwise_is_refused(build: Build) -> None:
    build(COOPERATIVE=479)
    with pytest.raises(LaunchError, match="driver callback 477 to be cuLaunchCooperativeKernel"):
        KernelWitness().__enter__()


def test_error_names_where_it_looked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package, toolkit = tmp_path / "nvidia" / "cu13" / "lib", tmp_path / "toolkit"
    package.mkdir(parents=True)
    (package / "libcupti.so.13").write_bytes(b"not a library")
    found = SimpleNamespace(submodule_search_locations=[str(tmp_path / "nvidia")])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: found)
    monkeypatch.setenv("CUDA_HOME", str(toolkit))
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setattr(libcupti, "SONAMES", ("libcupti.so.none",))
    monkeypatch.setattr(libcupti, "DEFAULT_TOOLKIT", "/nowhere")
    with pytest.raises(LaunchError) as refused:
        libcupti.load_cupti()
    places = [package / "libcupti.so.13", toolkit / "extras" / "CUPTI" / "lib64" / "libcupti.so"]
    assert all(str(place) in refused.value.found for place in (*places, "libcupti.so.none"))


@pytest.mark.parametrize(
    ("symbol", "name"),
    [(GEMM, GEMM_NAME), (b"ampere_gemm", "ampere_gemm"), (b"_Znonsense", "_Znonsense"), (b"\xff", "\\xff")],
    ids=["cpp", "plain", "nonsense", "not-utf-8"],
)
def test_names_are_demangled_where_they_can_be(symbol: bytes, name: str) -> None:
    assert demangled(symbol) == name


@pytest.fixture
def header_facts(tmp_path: Path) -> dict[str, int]:
    """What the headers of the installed toolkit say, computed by gcc."""
    if not shutil.which("gcc") or not (CUPTI_HEADERS / "cupti_callbacks.h").exists():
        pytest.skip("no gcc, or no CUPTI headers")
    numbers = libcupti.KERNEL_LAUNCHES | libcupti.GRAPH_LAUNCHES
    facts = {name: f"CUPTI_DRIVER_TRACE_CBID_{name}" for name in numbers.values()}
    facts |= {"DRIVER_API": "CUPTI_CB_DOMAIN_DRIVER_API", "API_ENTER": "CUPTI_API_ENTER"}
    facts |= {"MULTIPLE_SUBSCRIBERS": "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"}
    facts |= {field: f"offsetof(CUpti_CallbackData, {field})" for field in ("callbackSite", "symbolName")}
    facts |= {
        "correlationId": "offsetof(CUpti_CallbackData, correlationId)",
        "size": "sizeof(CUpti_CallbackData)",
    }
    lines = "".join(f'printf("{name} %d\\n", (int)({value}));' for name, value in facts.items())
    includes = "#include <stdio.h>\n#include <stddef.h>\n#include <cupti.h>\n"
    (tmp_path / "facts.c").write_text(f"{includes}int main(void) {{ {lines} return 0; }}")
    command = ["gcc", "-I", CUPTI_HEADERS, "-o", tmp_path / "facts", tmp_path / "facts.c"]
    subprocess.run(command, check=True)
    told = subprocess.run([tmp_path / "facts"], capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in (line.split() for line in told.splitlines())}


def test_numbers_and_layout_are_those_of_the_headers(header_facts: dict[str, int]) -> None:
    data = libcupti.CallbackData
    ours = {name: number for number, name in (libcupti.KERNEL_LAUNCHES | libcupti.GRAPH_LAUNCHES).items()}
    ours |= {name: getattr(libcupti, name) for name in ("DRIVER_API", "API_ENTER", "MULTIPLE_SUBSCRIBERS")}
    ours |= {
        "callbackSite": data.callback_site.offset,  # type: ignore[attr-defined]
        "symbolName": data.symbol_name.offset,  # type: ignore[union-attr]
        "correlationId": data.correlation_id.offset,
        "size": ctypes.sizeof(data),
    }
    assert header_facts == ours


def test_libcupti_of_this_host_numbers_its_callbacks_so() -> None:
    try:
        libcupti.load_cupti()
    except LaunchError as error:
        if "none that loads" not in error.found:
            raise
        pytest.skip(str(error))
