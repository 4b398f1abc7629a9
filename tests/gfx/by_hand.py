"""Instructions that numpy carries out on a whole wave: lanes that read each other, and matrix units.

`sgprs` (SCALARS,), `vgprs` and `accs` (256, lanes) are a wave's registers as uint32. Matrix products are
summed in float64 and rounded once: more exact than the hardware, whose order of sums is not documented.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from .instructions import EXEC, SCC, Unsupported, name_of


@dataclass
class Wave:
    family: str
    sgprs: np.ndarray
    vgprs: np.ndarray
    accs: np.ndarray

    @property
    def lanes(self) -> int:
        return int(self.vgprs.shape[1])

    @property
    def exec(self) -> np.ndarray:
        """Which lanes are enabled."""
        mask = int(self.sgprs[EXEC]) | int(self.sgprs[EXEC + 1]) << 32
        return np.array([mask >> i & 1 for i in range(self.lanes)], bool)

    def scalar(self, inst: Any, name: str) -> int:
        """The value of an operand that is the same for all lanes."""
        code = getattr(inst, name).offset
        if code < 128 or code == SCC:
            return int(self.sgprs[code])
        if 128 <= code <= 208:
            return code - 128 if code <= 192 else 192 - code & 0xFFFFFFFF
        if code == 255:
            return int(inst._literal)
        raise Unsupported(f"the operand {code} of {name_of(inst)}")

    def source(self, inst: Any, name: str) -> np.ndarray:
        code = getattr(inst, name).offset
        if code >= 256:
            return self.vgprs[code - 256].copy()
        return np.full(self.lanes, self.scalar(inst, name), np.uint32)


def carry_out(inst: Any, wave: Wave) -> None:
    """Raises Unsupported for an instruction or a modifier that is not known."""
    name = re.sub(r"_E(32|64)$", "", name_of(inst))
    if re.match(r"V_(WMMA|MFMA)_", name):
        matrix_product(inst, name, wave)
    elif name in _LANES:
        _LANES[name](inst, wave)
    else:
        raise Unsupported(f"{name} is not carried out here")


def _read_first(inst: Any, wave: Wave) -> None:
    on = np.flatnonzero(wave.exec)
    wave.sgprs[inst.vdst.offset & 0xFF] = wave.source(inst, "src0")[on[0] if on.size else 0]


def _read_lane(inst: Any, wave: Wave) -> None:
    wave.sgprs[inst.vdst.offset & 0xFF] = wave.source(inst, "src0")[wave.scalar(inst, "src1") % wave.lanes]


def _write_lane(inst: Any, wave: Wave) -> None:
    lane = wave.scalar(inst, "src1") % wave.lanes
    wave.vgprs[inst.vdst.offset - 256, lane] = wave.scalar(inst, "src0")


def _fetch(inst: Any, wave: Wave) -> None:
    """Each lane reads the register of the lane its address names; lanes that are off give 0."""
    groups = 32 if wave.family == "rdna3" else wave.lanes
    address = wave.vgprs[inst.addr.offset - 256] + np.uint32(inst.offset0 | inst.offset1 << 8)
    lanes = np.arange(wave.lanes)
    source = lanes // groups * groups + (address >> 2) % groups
    data = np.where(wave.exec, wave.vgprs[inst.data0.offset - 256], 0).astype(np.uint32)
    wave.vgprs[inst.vdst.offset - 256, wave.exec] = data[source][wave.exec]


def _push(inst: Any, wave: Wave) -> None:
    address = wave.vgprs[inst.addr.offset - 256] + np.uint32(inst.offset0 | inst.offset1 << 8)
    found = np.zeros(wave.lanes, np.uint32)
    for lane in np.flatnonzero(wave.exec):
        found[(address[lane] >> 2) % wave.lanes] = wave.vgprs[inst.data0.offset - 256, lane]
    wave.vgprs[inst.vdst.offset - 256, wave.exec] = found[wave.exec]


def _swizzle(inst: Any, wave: Wave) -> None:
    offset, lanes = inst.offset0 | inst.offset1 << 8, np.arange(wave.lanes)
    if offset >= 0xC000:
        raise Unsupported(f"the swizzle {offset:#x}")
    if offset & 0x8000:
        picks = np.array([offset >> 2 * i & 3 for i in range(4)])
        source = lanes // 4 * 4 + picks[lanes % 4]
    else:
        low = (lanes % 32 & offset & 31 | offset >> 5 & 31) ^ offset >> 10 & 31
        source = lanes // 32 * 32 + low
    data = np.where(wave.exec, wave.vgprs[inst.addr.offset - 256], 0).astype(np.uint32)
    wave.vgprs[inst.vdst.offset - 256, wave.exec] = data[source][wave.exec]


def _rows(other: bool, varying: bool) -> Callable[[Any, Wave], None]:
    """Lanes of a row of 16 read lanes of the same row, or of its neighbour."""
    def permute(inst: Any, wave: Wave) -> None:
        lanes = np.arange(wave.lanes)
        if varying:
            pick = wave.source(inst, "src1") & 15
        else:
            packed = wave.scalar(inst, "src1") | wave.scalar(inst, "src2") << 32
            pick = np.array([packed >> 4 * (i % 16) & 15 for i in range(wave.lanes)], np.uint32)
        source = (lanes // 16 ^ int(other)) * 16 + pick
        data, on, old = wave.source(inst, "src0"), wave.exec, wave.vgprs[inst.vdst.offset - 256].copy()
        inactive, zero = inst.opsel & 1, inst.opsel >> 1 & 1
        usable = on[source] if not inactive else np.ones(wave.lanes, bool)
        found = np.where(usable, data[source], 0 if zero else old)
        wave.vgprs[inst.vdst.offset - 256, on] = found[on]
    return permute


def _halves(inst: Any, wave: Wave) -> None:
    """The high half of the lanes read the low half and the other way round."""
    data, on = wave.source(inst, "src0"), wave.exec
    source = np.arange(wave.lanes) ^ wave.lanes // 2
    wave.vgprs[inst.vdst.offset - 256, on] = data[source][on]


def _from_accumulator(inst: Any, wave: Wave) -> None:
    on = wave.exec
    wave.vgprs[inst.vdst.offset - 256, on] = wave.accs[inst.src0.offset - 256, on]


def _to_accumulator(inst: Any, wave: Wave) -> None:
    on = wave.exec
    wave.accs[inst.vdst.offset - 256, on] = wave.source(inst, "src0")[on]


def _between_accumulators(inst: Any, wave: Wave) -> None:
    on = wave.exec
    wave.accs[inst.vdst.offset - 256, on] = wave.accs[inst.src0.offset - 256, on]


_LANES: dict[str, Callable[[Any, Wave], None]] = {
    "V_READFIRSTLANE_B32": _read_first, "V_READLANE_B32": _read_lane, "V_WRITELANE_B32": _write_lane,
    "DS_BPERMUTE_B32": _fetch, "DS_PERMUTE_B32": _push, "DS_SWIZZLE_B32": _swizzle,
    "V_PERMLANE16_B32": _rows(False, False), "V_PERMLANEX16_B32": _rows(True, False),
    "V_PERMLANE16_VAR_B32": _rows(False, True), "V_PERMLANEX16_VAR_B32": _rows(True, True),
    "V_PERMLANE64_B32": _halves,
    "V_ACCVGPR_READ": _from_accumulator, "V_ACCVGPR_READ_B32": _from_accumulator,
    "V_ACCVGPR_WRITE": _to_accumulator, "V_ACCVGPR_WRITE_B32": _to_accumulator,
    "V_ACCVGPR_MOV_B32": _between_accumulators,
}

# Matrix units

_NAME = re.compile(r"V_(?P<unit>WMMA|MFMA)_(?P<out>F32|F16|BF16|I32|F64)_(?P<m>\d+)X(?P<n>\d+)X(?P<k>\d+)_"
                   r"(?:(?P<blocks>\d+)B_)?(?P<type>F16|BF16|BF16_1K|XF32|F32|F64|I8|IU8|IU4|"
                   r"FP8_FP8|FP8_BF8|BF8_FP8|BF8_BF8)$")
_TYPES = {"F16": np.float16, "BF16": ml_dtypes.bfloat16, "F32": np.float32, "XF32": np.float32,
          "F64": np.float64}


def matrix_product(inst: Any, name: str, wave: Wave) -> None:
    """D = A B + C on the tiles that lanes hold together."""
    match = _NAME.match(name)
    if match is None:
        raise Unsupported(f"the matrix product {name}")
    m, n, k = (int(match[g]) for g in ("m", "n", "k"))
    blocks = int(match["blocks"] or 1)
    kinds = match["type"].removesuffix("_1K")
    if match["unit"] == "WMMA":
        a, b = (_wmma_factor(inst, wave, at, kinds, k) for at in (0, 1))
        c = _wmma_sum(inst, wave, match["out"])
        out = _product(a, b, c, match["out"], bool(inst.clmp))
        _wmma_store(inst, wave, match["out"], out)
        return
    word = int(inst._raw)
    broadcast, accumulators = word >> 61 & 7 | word >> 8 & 7 | word >> 11 & 15, bool(word >> 15 & 1)
    if broadcast and match["out"] != "F64":
        raise Unsupported(f"{name} with lanes broadcast")
    tiles = _Tiles(wave, m, n, k, blocks)
    a = tiles.factor(inst, "src0", kinds.split("_")[0], m, word >> 59 & 1)
    b = tiles.factor(inst, "src1", kinds.split("_")[-1], n, word >> 60 & 1)
    place = tiles.places(match["out"])
    c = tiles.sums(inst, match["out"], place, accumulators)
    found = np.stack([_product(a[i], b[i], c[i], match["out"], False) for i in range(tiles.blocks)])
    tiles.store(inst, match["out"], found, place, accumulators)


def _product(a: np.ndarray, b: np.ndarray, c: np.ndarray, out: str, clamp: bool) -> np.ndarray:
    """(m, k), (n, k) and (m, n) as the output's type."""
    if out == "I32":
        total = a.astype(np.int64) @ b.astype(np.int64).T + c.astype(np.int64)
        if clamp:
            total = np.clip(total, -2**31, 2**31 - 1)
        return total.astype(np.uint64).astype(np.uint32).view(np.int32)
    with np.errstate(all="ignore"):
        total = a.astype(np.float64) @ b.astype(np.float64).T + c.astype(np.float64)
        types = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "F64": np.float64}
        return total.astype(types[out])


def _numbers(raw: np.ndarray, kind: str, signed: bool = True) -> np.ndarray:
    """Registers (lanes, count) as (lanes, numbers)."""
    raw = np.ascontiguousarray(raw)
    if kind in ("I8", "IU8"):
        return raw.view(np.int8 if signed else np.uint8)
    if kind == "IU4":
        both = raw.view(np.uint8)
        found = np.stack([both & 15, both >> 4], -1).reshape(len(raw), -1).astype(np.int8)
        return np.where(found > 7, found - 16, found) if signed else found
    if kind in ("FP8", "BF8"):
        return raw.view(ml_dtypes.float8_e4m3fn if kind == "FP8" else ml_dtypes.float8_e5m2)
    found = raw.view(_TYPES[kind])
    if kind == "XF32":
        bits = found.view(np.uint32)
        found = (bits + 0xFFF + (bits >> 13 & 1) & np.uint32(0xFFFFE000)).view(np.float32)
    return found


def _registers(wave: Wave, inst: Any, name: str, count: int, accumulators: bool = False) -> np.ndarray:
    """(lanes, count) of an operand; a constant is the same everywhere."""
    code = getattr(inst, name).offset
    if code >= 256:
        rows = (wave.accs if accumulators else wave.vgprs)[code - 256:code - 256 + count]
        return np.ascontiguousarray(rows.T)
    if code == 128:
        return np.zeros((wave.lanes, count), np.uint32)
    raise Unsupported(f"the operand {code} of {name_of(inst)}")


def _signs(inst: Any, at: int, x: np.ndarray) -> np.ndarray:
    if inst.neg >> at & 1 or inst.neg_hi >> at & 1:
        if (inst.neg ^ inst.neg_hi) >> at & 1:
            raise Unsupported("a sign changed for half of a matrix")
        return -x
    return x


def _wmma_factor(inst: Any, wave: Wave, at: int, kinds: str, k: int) -> np.ndarray:
    """A as (16, k), or B as (16, k), from the lanes."""
    kind = kinds.split("_")[at] if "_" in kinds else kinds
    bits = {"F16": 16, "BF16": 16, "IU8": 8, "IU4": 4, "FP8": 8, "BF8": 8}[kind]
    halves = 1 if wave.family == "rdna3" else 2
    count = k // halves * bits // 32
    signed = bool(inst.neg >> at & 1) if kind.startswith("IU") else True
    x = _numbers(_registers(wave, inst, f"src{at}", count), kind, signed)
    found = x[:16] if halves == 1 else np.concatenate([x[:16], x[16:32]], 1)
    return found if kind.startswith("IU") else _signs(inst, at, found.astype(np.float32))


def _wmma_rows(wave: Wave) -> tuple[np.ndarray, np.ndarray]:
    """The rows and columns of the 8 numbers each lane holds of C: (lanes, 8) each."""
    lane, r = np.arange(32)[:, None], np.arange(8)[None]
    rows = 2 * r + lane // 16 if wave.family == "rdna3" else 8 * (lane // 16) + r
    return rows, np.broadcast_to(lane % 16, rows.shape)


def _wmma_sum(inst: Any, wave: Wave, out: str) -> np.ndarray:
    rows, columns = _wmma_rows(wave)
    found = np.zeros((16, 16), np.float64 if out != "I32" else np.int64)
    if out in ("F32", "I32"):
        raw = _registers(wave, inst, "src2", 8)
        x = raw.view(np.float32 if out == "F32" else np.int32)
    else:
        x = _narrow_sums(inst, wave).view(_TYPES[out]).astype(np.float32)
    found[rows, columns] = x if out == "I32" else _signs(inst, 2, x)
    return found


def _narrow_sums(inst: Any, wave: Wave) -> np.ndarray:
    """C of 16-bit numbers, (lanes, 8): RDNA3 keeps each in half a register, RDNA4 two in one."""
    if wave.family == "rdna3":
        raw = _registers(wave, inst, "src2", 8)
        return (raw >> 16 * (inst.opsel >> 2 & 1) & 0xFFFF).astype(np.uint16)
    return _registers(wave, inst, "src2", 4).view(np.uint16)


def _wmma_store(inst: Any, wave: Wave, out: str, found: np.ndarray) -> None:
    rows, columns = _wmma_rows(wave)
    values, at = found[rows, columns], inst.vdst.offset - 256
    if out in ("F32", "I32"):
        wave.vgprs[at:at + 8] = np.ascontiguousarray(values).view(np.uint32).T
    elif wave.family == "rdna3":
        high = inst.opsel >> 2 & 1
        kept = wave.vgprs[at:at + 8] & np.uint32(0xFFFF if high else 0xFFFF0000)
        narrow = np.ascontiguousarray(values).view(np.uint16).astype(np.uint32).T
        wave.vgprs[at:at + 8] = kept | narrow << np.uint32(16 * high)
    else:
        wave.vgprs[at:at + 4] = np.ascontiguousarray(values).view(np.uint32).T


class _Tiles:
    """How CDNA's 64 lanes share the tiles of a product."""

    def __init__(self, wave: Wave, m: int, n: int, k: int, blocks: int) -> None:
        self.wave, self.m, self.n, self.k, self.blocks = wave, m, n, k, blocks
        if m == 4 and n == 4:
            self.blocks = blocks = 16
        self.groups = 64 // (m * blocks)
        self.depth = max(1, k // self.groups)

    def factor(self, inst: Any, name: str, kind: str, size: int, accumulators: int) -> np.ndarray:
        """(blocks, size, k)."""
        bits = {"F16": 16, "BF16": 16, "I8": 8, "FP8": 8, "BF8": 8, "F32": 32, "XF32": 32, "F64": 64}[kind]
        count = max(1, self.depth * bits // 32)
        x = _numbers(_registers(self.wave, inst, name, count, bool(accumulators)), kind)[:, :self.depth]
        lanes = x.reshape(self.groups, self.blocks, size, self.depth) if self.groups > 1 else \
            x.reshape(1, self.blocks, size, self.depth)
        return lanes.transpose(1, 2, 0, 3).reshape(self.blocks, size, -1)

    def places(self, out: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Block, row and column of each lane's numbers: (lanes, numbers) each."""
        count = self.m * self.n * self.blocks // 64
        lane, r = np.arange(64)[:, None], np.arange(count)[None]
        if out == "F64":
            return np.zeros_like(lane + r), lane // 16 + 4 * r, lane % 16 + 0 * r
        if self.m == 4:
            return lane // 4 + 0 * r, r + 0 * lane, lane % 4 + 0 * r
        per = self.m * self.n // 64
        block, within = r // per + 0 * lane, r % per
        high = 64 // self.n
        row = within // 4 * 4 * high + lane // self.n * 4 + within % 4
        return block, row, lane % self.n + 0 * r

    def _type(self, out: str) -> Any:
        return {"F32": np.float32, "I32": np.int32, "F64": np.float64}[out]

    def sums(self, inst: Any, out: str, place: Any, accumulators: bool) -> np.ndarray:
        count = place[0].shape[1] * (2 if out == "F64" else 1)
        code = inst.src2.offset
        found = np.zeros((self.blocks, self.m, self.n), np.float64 if out != "I32" else np.int64)
        if code >= 256:
            found[place] = _registers(self.wave, inst, "src2", count, accumulators).view(self._type(out))
        elif 128 <= code <= 208:
            found[:] = code - 128 if code <= 192 else 192 - code
        else:
            raise Unsupported(f"the operand {code} of {name_of(inst)}")
        return found

    def store(self, inst: Any, out: str, found: np.ndarray, place: Any, accumulators: bool) -> None:
        values = np.ascontiguousarray(found[place]).view(np.uint32)
        at = inst.vdst.offset - 256
        file = self.wave.accs if accumulators else self.wave.vgprs
        file[at:at + values.shape[1]] = values.T
