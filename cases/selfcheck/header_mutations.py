"""Mutated weight files: headers of a few tensors, damaged where a parser may look away."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

Fields = list[tuple[str, str]]
"""Keys and values of one object, as JSON text: anything can be said twice or wrongly."""
WIDTHS = {"U8": 1, "F8_E4M3": 1, "BOOL": 1, "BF16": 2, "F32": 4, "I64": 8, "F4": 0.5, "F6_E2M3": 0.75}
"""Bytes an element of the dtypes that unharmed files use."""
OTHER_DTYPES = "F8_E5M2 F8_E8M0 F8_E4M3FNUZ F6_E3M2 C64 U64 F16 U16 F33".split()

# JSON, or nearly so.
NUMBERS = [
    *r'0 1 2 8 -0 -1 1.0 0.0 4.5 1e3 1E0 1e-1 01 +1 0x1 .5 1. "4" [4] {}'.split(),
    *"true null NaN Infinity -Infinity".split(),
    *map(str, (2**32, 2**61, 2**63 - 1, 2**63, 2**64 - 1, 2**64)),
    *("9" * 400, ""),
]
DTYPES = [*(f'"{name}"' for name in (*WIDTHS, *OTHER_DTYPES)), '""', "null", "1"]
NAMES = [
    *r'"a" "b" "" "\u0061" "\/" "\x" "\u0000" "é" "\u00e9" "e\u0301" a ' "'a'" " 1 null".split(),
    *r'"\ud83d\ude00" "\ud800" "\ude00\ud83d" "__metadata__" "__meta\u0064ata__"'.split(),
    *('"\x01"', '"\t"'),
]
FIELDS = [*r'"dtype" "shape" "data_offsets" "strides" "dt\u0079pe" "Dtype" "data_offset"'.split(), '"shape "']
METADATA = [
    *r'{} {"format":"pt"} null [] "pt" {"a":1} {"a":null} {"a":{}} {"a":["b"]} {"a":"b","a":"c"}'.split(),
    *r'{"a":"b",} {"a":"\ud800"} {"\ud800":"a"} {"a":"\u0000"} {"":""}'.split(),
]
VALUES = [*r'null true 1 "a" [] {} ["F32",[1],[0,4]]'.split(), "[" * 130 + "]" * 130, "[" * 100]
OFFSETS = r'[] [0] [0,0] [0,4,8] {} null [4,0] [[0,4]] {"0":0,"1":4}'.split()
LARGER = ["0", "1", "1,1", "2", f"0,{2**63}", f"{2**32},{2**32},0", f"{2**60}"]
SPACES = [" ", "   ", "\n", "\t", "\r", "\v", "\f", "\u00a0", "\0", "\ufeff", "/**/", "//\n", ","]
BYTES = [b" ", b"\0", b'"', b"\\", b"{", b"]", b"\xff", b"\xc0\x80", b"0"]


@dataclass
class Model:
    """A file whose header is not text yet."""

    tensors: list[tuple[str, Fields | str]]
    """Name as JSON text, and the fields of its object or the whole value as text."""
    data: bytes
    spaces: list[str] = field(default_factory=lambda: ["", "", ""])
    """Before the `{`, behind the `}`, and behind every comma."""

    def framed(self) -> bytes:
        """The file."""
        before, behind, comma = self.spaces
        separator = f",{comma}"

        def value_text(value: Fields | str) -> str:
            return value if isinstance(value, str) else f"{{{separator.join(f'{k}:{v}' for k, v in value)}}}"

        entries = separator.join(f"{name}:{value_text(value)}" for name, value in self.tensors)
        header = f"{before}{{{entries}}}{behind}".encode()
        return len(header).to_bytes(8, "little") + header + self.data


def mutation(random: Random) -> tuple[bytes, str]:
    """One file and the names of what was done to it, which may be nothing."""
    model = _unharmed(random)
    of_model = random.choices(OF_MODELS, k=random.choice((0, 1, 1, 1, 2, 3)))
    of_bytes = random.choices(OF_BYTES, k=random.choice((0, 0, 0, 1, 1, 2)))
    for change in of_model:
        change(model, random)
    framed = model.framed()
    for change_bytes in of_bytes:
        framed = change_bytes(framed, random)
    return framed, " ".join(change.__name__ for change in (*of_model, *of_bytes))


def _unharmed(random: Random) -> Model:
    tensors: list[tuple[str, Fields | str]] = []
    end = 0
    for name in random.sample(('"a"', '"b"', '"c.weight"', '"d"'), random.randint(0, 4)):
        dtype = random.choice(list(WIDTHS))
        shape = random.choices((0, 1, 2, 3, 4), k=random.randint(0, 3)) + ([4] if WIDTHS[dtype] < 1 else [])
        size = WIDTHS[dtype]
        for n in shape:
            size *= n
        start, end = end, end + int(size)
        fields = [
            ('"dtype"', f'"{dtype}"'),
            ('"shape"', _list(shape)),
            ('"data_offsets"', _list([start, end])),
        ]
        tensors.append((name, fields))
    if random.random() < 0.4:
        tensors.append(('"__metadata__"', random.choice(METADATA[:2])))
    random.shuffle(tensors)
    # Random, so that tensors whose places are confused differ in their bytes.
    return Model(tensors, random.randbytes(end))


def _list(numbers: list[int]) -> str:
    return f"[{','.join(map(str, numbers))}]"


def _fields(model: Model, random: Random) -> Fields:
    """Of any tensor, to be changed in place; of none, where there is none."""
    return random.choice([value for _, value in model.tensors if not isinstance(value, str)] or [[]])


def _replace(fields: Fields, key: str, change: Callable[[str], str]) -> None:
    fields[:] = [(k, change(v) if k == key else v) for k, v in fields]


def _number(text: str, random: Random) -> str:
    """The list `text` with one number replaced, half of the time by one nearby."""
    items = text.strip("[]").split(",")
    at = random.randrange(len(items))
    if items[at].isdecimal() and len(items[at]) < 30 and random.random() < 0.5:
        items[at] = str(int(items[at]) + random.choice((-8, -1, 1, 2, 8)))
    else:
        items[at] = random.choice(NUMBERS)
    return f"[{','.join(items)}]"


def offset(model: Model, random: Random) -> None:
    _replace(_fields(model, random), '"data_offsets"', lambda text: _number(text, random))


def offsets_list(model: Model, random: Random) -> None:
    _replace(_fields(model, random), '"data_offsets"', lambda text: random.choice(OFFSETS))


def swapped_offsets(model: Model, random: Random) -> None:
    one, two = _fields(model, random), _fields(model, random)
    ours, theirs = dict(one).get('"data_offsets"', ""), dict(two).get('"data_offsets"', "")
    _replace(one, '"data_offsets"', lambda text: theirs)
    _replace(two, '"data_offsets"', lambda text: ours)


def shifted_offsets(model: Model, random: Random) -> None:
    by = random.choice((-1, 1, 4))

    def shift(text: str) -> str:
        items = text.strip("[]").split(",")
        return f"[{','.join(str(int(i) + by) if i.isdecimal() else i for i in items)}]"

    for _, value in model.tensors:
        if not isinstance(value, str):
            _replace(value, '"data_offsets"', shift)


def size_of_shape(model: Model, random: Random) -> None:
    _replace(_fields(model, random), '"shape"', lambda text: _number(text, random))


def shape_grows(model: Model, random: Random) -> None:
    more = random.choice(LARGER)
    _replace(_fields(model, random), '"shape"', lambda text: f"[{more},{text[1:]}".replace(",]", "]"))


def dtype(model: Model, random: Random) -> None:
    _replace(_fields(model, random), '"dtype"', lambda text: random.choice(DTYPES))


def dtype_spelling(model: Model, random: Random) -> None:
    changes: list[Callable[[str], str]] = [
        str.lower,
        lambda text: text.replace('"', '" ', 1),
        lambda text: text.replace("8", r"\u0038").replace("F", r"\u0046"),
        lambda text: f"[{text}]",
        lambda text: f"{{{text}:null}}",
    ]
    _replace(_fields(model, random), '"dtype"', random.choice(changes))


def field_name(model: Model, random: Random) -> None:
    fields = _fields(model, random)
    if fields:
        at = random.randrange(len(fields))
        fields[at] = random.choice(FIELDS), fields[at][1]


def field_more(model: Model, random: Random) -> None:
    fields = _fields(model, random)
    more = random.choice([*fields, (random.choice(FIELDS), random.choice(VALUES))])
    fields.insert(random.randrange(len(fields) + 1), more)


def field_less(model: Model, random: Random) -> None:
    fields = _fields(model, random)
    if fields:
        fields.pop(random.randrange(len(fields)))


def field_order(model: Model, random: Random) -> None:
    random.shuffle(_fields(model, random))


def tensor_name(model: Model, random: Random) -> None:
    if model.tensors:
        at = random.randrange(len(model.tensors))
        model.tensors[at] = random.choice(NAMES), model.tensors[at][1]


def tensor_again(model: Model, random: Random) -> None:
    if model.tensors:
        name, value = random.choice(model.tensors)
        again = value if isinstance(value, str) else list(value)
        model.tensors.insert(random.randrange(len(model.tensors) + 1), (name, again))


def tensor_value(model: Model, random: Random) -> None:
    if model.tensors:
        at = random.randrange(len(model.tensors))
        name, value = model.tensors[at]
        as_list = value if isinstance(value, str) else f"[{','.join(v for _, v in value)}]"
        model.tensors[at] = name, random.choice([*VALUES, as_list])


def metadata(model: Model, random: Random) -> None:
    name = random.choice(('"__metadata__"', '"__metadata__"', r'"__meta\u0064ata__"'))
    model.tensors.insert(random.randrange(len(model.tensors) + 1), (name, random.choice(METADATA)))


def space(model: Model, random: Random) -> None:
    model.spaces[random.randrange(3)] = random.choice(SPACES)


def padding(model: Model, random: Random) -> None:
    model.spaces[1] = " " * random.randrange(1, 17)


def data_longer(model: Model, random: Random) -> None:
    model.data += bytes(random.choice((1, 2, 8)))


def data_shorter(model: Model, random: Random) -> None:
    model.data = model.data[: -random.choice((1, 2, 8))]


def flipped(framed: bytes, random: Random) -> bytes:
    at = random.randrange(len(framed) + 1)
    return (
        framed[:at]
        + bytes(byte ^ 1 << random.randrange(8) for byte in framed[at : at + 1])
        + framed[at + 1 :]
    )


def inserted(framed: bytes, random: Random) -> bytes:
    at = random.randrange(len(framed) + 1)
    return framed[:at] + random.choice(BYTES) + framed[at:]


def inserted_and_counted(framed: bytes, random: Random) -> bytes:
    """Into the header, whose length field then says so."""
    length = int.from_bytes(framed[:8], "little")
    changed = inserted(framed[8 : 8 + length], random)
    return len(changed).to_bytes(8, "little") + changed + framed[8 + length :]


def removed(framed: bytes, random: Random) -> bytes:
    at = random.randrange(len(framed) + 1)
    return framed[:at] + framed[at + random.choice((1, 1, 2, 8)) :]


def truncated(framed: bytes, random: Random) -> bytes:
    return framed[: random.randrange(len(framed) + 1)]


def length_field(framed: bytes, random: Random) -> bytes:
    length = int.from_bytes(framed[:8], "little")
    lies = (0, 1, length - 1, length + 1, length + 8, 100_000_000, 100_000_001, 2**63, 2**64 - 1, 2**64 - 8)
    return (random.choice(lies) % 2**64).to_bytes(8, "little") + framed[8:]


OF_MODELS = [
    *[offset, offset, offsets_list, swapped_offsets, shifted_offsets],
    *[size_of_shape, size_of_shape, shape_grows, dtype, dtype_spelling],
    *[field_name, field_more, field_less, field_order],
    *[tensor_name, tensor_again, tensor_value, metadata],
    *[space, padding, data_longer, data_shorter],
]
OF_BYTES = [
    *[flipped, flipped, inserted, inserted_and_counted, inserted_and_counted],
    *[removed, truncated, length_field],
]
