"""What each instruction means: AMD's pseudo-code where it is exact and can be read, and texts of this project
where it is prose, incomplete or about what an emulator has not."""

from __future__ import annotations

import functools
import importlib
import re

_NOTHING = re.compile(
    r"S_WAIT|S_NOP|S_CLAUSE|S_DELAY_ALU|S_SLEEP|S_SENDMSG|S_SETPRIO|S_SET_INST_PREFETCH|S_INST_PREFETCH|"
    r"S_ICACHE_INV|S_DCACHE_INV|S_DCACHE_WB|S_GL1_INV|S_TTRACEDATA|S_DENORM_MODE|S_ROUND_MODE|S_SETREG|"
    r"S_BARRIER_SIGNAL|S_SETHALT|S_SET_GPR_IDX_OFF|V_NOP|V_PIPEFLUSH|S_PREFETCH|"
    r"(GLOBAL|BUFFER|S)_(INV|WB|WBL2|WBINV|GL0_INV|GL1_INV)\w*$")
_FREXP = "if S0.f{n} == 0.0 then D0.i{m} = 0 elsif exponent(S0.f{n}) == {top} then D0.i{m} = 0 " \
         "elsif exponent(S0.f{n}) == 0 then D0.i{m} = exponent(ldexp(S0.f{n}, 64)) - {bias} - 64 " \
         "else D0.i{m} = exponent(S0.f{n}) - {bias} endif"
_PACKED = "tmp[31 : 16].{t} = {f}(S0[31 : 16].{t}, S1[31 : 16].{t}); " \
          "tmp[15 : 0].{t} = {f}(S0[15 : 0].{t}, S1[15 : 0].{t}); D0.b32 = tmp"

_OWN: tuple[tuple[str, str], ...] = (
    # The text leaves open what DENORM is and that S0 is kept, and scales the largest denominators beyond what
    # there is.
    (r"V_DIV_SCALE_F(32|64)$",
     "D0.f{0} = S0.f{0}; VCC = 0x0LL; "
     "if ((S2.f{0} == 0.0) || (S1.f{0} == 0.0)) then D0.f{0} = NAN.f{0} "
     "elsif exponent(S2.f{0}) - exponent(S1.f{0}) >= {1} then VCC = 0x1LL; "
     "if S0.f{0} == S1.f{0} then D0.f{0} = ldexp(S0.f{0}, {2}) endif "
     "elsif exponent(S1.f{0}) == 0 then D0.f{0} = ldexp(S0.f{0}, {2}) "
     "elsif ((exponent(S1.f{0}) >= {3}) && (exponent(S2.f{0}) - exponent(S1.f{0}) <= {5})) then VCC = 0x1LL; "
     "if S0.f{0} == S1.f{0} then D0.f{0} = ldexp(S0.f{0}, -{2}) endif "
     "elsif exponent(S1.f{0}) >= {3} then D0.f{0} = ldexp(S0.f{0}, -{2}) "
     "elsif exponent(S2.f{0}) - exponent(S1.f{0}) <= {5} then VCC = 0x1LL; "
     "if S0.f{0} == S2.f{0} then D0.f{0} = ldexp(S0.f{0}, {2}) endif "
     "elsif exponent(S2.f{0}) <= {4} then D0.f{0} = ldexp(S0.f{0}, {2}) endif"),
    (r"V_CVT_F64_F32$", "D0.f64 = f32_to_f64(S0.f32)"),
    (r"V_FREXP_EXP_I32_F32$", _FREXP.format(n=32, m=32, top=255, bias=126)),
    (r"V_FREXP_EXP_I32_F64$", _FREXP.format(n=64, m=32, top=2047, bias=1022)),
    (r"V_FREXP_MANT_F(32|64)$",
     "if exponent(S0.f{0}) == {6} then D0.f{0} = S0.f{0} "
     "elsif exponent(S0.f{0}) == 0 then D0.f{0} = mantissa(ldexp(S0.f{0}, 64)) "
     "else D0.f{0} = mantissa(S0.f{0}) endif"),
    (r"V_LDEXP_F(16|32|64)$", "D0.f{0} = ldexp(S0.f{0}, S1.i32)"),
    (r"V_(MAX|MAX_NUM)_F(16|32|64)$", "D0.f{-1} = larger(S0.f{-1}, S1.f{-1})"),
    (r"V_(MIN|MIN_NUM)_F(16|32|64)$", "D0.f{-1} = smaller(S0.f{-1}, S1.f{-1})"),
    (r"S_(MAX|MAX_NUM)_F(16|32)$", "D0.f{-1} = larger(S0.f{-1}, S1.f{-1})"),
    (r"S_(MIN|MIN_NUM)_F(16|32)$", "D0.f{-1} = smaller(S0.f{-1}, S1.f{-1})"),
    (r"V_(MAX3|MAX3_NUM)_F(16|32)$", "D0.f{-1} = larger(larger(S0.f{-1}, S1.f{-1}), S2.f{-1})"),
    (r"V_(MIN3|MIN3_NUM)_F(16|32)$", "D0.f{-1} = smaller(smaller(S0.f{-1}, S1.f{-1}), S2.f{-1})"),
    (r"V_(MAXMIN|MAXMIN_NUM)_F(16|32)$", "D0.f{-1} = smaller(larger(S0.f{-1}, S1.f{-1}), S2.f{-1})"),
    (r"V_(MINMAX|MINMAX_NUM)_F(16|32)$", "D0.f{-1} = larger(smaller(S0.f{-1}, S1.f{-1}), S2.f{-1})"),
    (r"V_MED3(?:_NUM)?_F(16|32)$",
     "D0.f{0} = larger(smaller(S0.f{0}, S1.f{0}), smaller(larger(S0.f{0}, S1.f{0}), S2.f{0}))"),
    (r"V_PK_(MAX|MAX_NUM)_F16$", _PACKED.format(f="larger", t="f16")),
    (r"V_PK_(MIN|MIN_NUM)_F16$", _PACKED.format(f="smaller", t="f16")),
    (r"V_(?:FMA|MAD)_MIX_F32$", "D0.f32 = fma(S0.f32, S1.f32, S2.f32)"),
    (r"V_(?:FMA|MAD)_MIXLO_F16$", "D0[15 : 0].f16 = f32_to_f16(fma(S0.f32, S1.f32, S2.f32))"),
    (r"V_(?:FMA|MAD)_MIXHI_F16$", "D0[31 : 16].f16 = f32_to_f16(fma(S0.f32, S1.f32, S2.f32))"),
    (r"V_PK_MOV_B32$", "D0[31 : 0] = S0[31 : 0]; D0[63 : 32] = S1[31 : 0]"),
    # The texts scale one way only: a large quotient was divided by a denominator scaled up, a small one comes
    # from a numerator scaled up.
    (r"V_DIV_FMAS_F(32|64)$",
     "tmp = fma(S0.f{0}, S1.f{0}, S2.f{0}); "
     "D0.f{0} = VCC.u64[laneId] ? ldexp(tmp, exponent(S2.f{0}) > {7} ? {2} : -{2}) : tmp"),
    (r"V_RCP_(?:IFLAG_)?F(16|32|64)$", "D0.f{0} = 1.0 / S0.f{0}"),
    (r"V_RSQ_F(16|32|64)$", "D0.f{0} = 1.0 / sqrt(S0.f{0})"),
    (r"V_EXP_F16$", "D0.f16 = pow(2.0F, S0.f16)"),
    (r"V_RNDNE_F(16|32|64)$|S_RNDNE_F(16|32)$", "D0.f{-1} = rint(S0.f{-1})"),
    (r"V_FLOOR_F(16|32|64)$|S_FLOOR_F(16|32)$", "D0.f{-1} = floor(S0.f{-1})"),
    (r"V_CEIL_F(16|32|64)$|S_CEIL_F(16|32)$", "D0.f{-1} = ceil(S0.f{-1})"),
    (r"V_(?:CLZ_I32_U32|FFBH_U32)$|S_CLZ_I32_U32$|S_FLBIT_I32_B32$", "D0.i32 = clz(S0.u32)"),
    (r"S_CLZ_I32_U64$|S_FLBIT_I32_B64$", "D0.i32 = clz(S0.u64)"),
    (r"V_(?:CTZ_I32_B32|FFBL_B32)$|S_CTZ_I32_B32$|S_FF1_I32_B32$", "D0.i32 = ctz(S0.u32)"),
    (r"S_CTZ_I32_B64$|S_FF1_I32_B64$", "D0.i32 = ctz(S0.u64)"),
    (r"[SV]_(?:BREV|BFREV)_B(32|64)$", "D0.u{0} = reversed(S0.u{0})"),
    (r"S_BCNT1_I32_B(32|64)$", "tmp = ones(S0.u{0}); D0.i32 = tmp.i32; SCC = D0.i32 != 0"),
    (r"V_BCNT_U32_B32$", "D0.u32 = S1.u32 + ones(S0.u32)"),
    (r"V_MBCNT_LO_U32_B32$",
     "tmp = laneId.u32 >= 32U ? 0xffffffffU : (1U << laneId.u32) - 1U; "
     "D0.u32 = S1.u32 + ones(S0.u32 & tmp.u32)"),
    (r"V_MBCNT_HI_U32_B32$",
     "tmp = laneId.u32 <= 32U ? 0U : (1U << (laneId.u32 - 32U)) - 1U; "
     "D0.u32 = S1.u32 + ones(S0.u32 & tmp.u32)"),
    (r"V_PERM_B32$",
     "all = 0U; for i in 0 : 3 do sel = S2.u32 >> (i * 8) & 0xffU; "
     "if sel.u32 >= 13U then byte = 0xffU elsif sel.u32 == 12U then byte = 0U "
     "elsif sel.u32 >= 8U then tmp = { S0.u32, S1.u32 } >> ((sel.u32 - 8U) * 16U + 15U); "
     "byte = (tmp[0] ? 0xffU : 0U) "
     "else tmp = { S0.u32, S1.u32 } >> (sel.u32 * 8U); byte = 32'U(tmp[7 : 0]) endif; "
     "all = (all & ~(0xffU << (i * 8))) | (byte.u32 << (i * 8)) endfor; D0.u32 = all"),
    (r"DS_(?:LOAD|READ)_(?:ADDTID)_B32$", "RETURN_DATA[31 : 0] = MEM[ADDR].b32"),
    (r"S_(?:GETREG)_B32$", "D0.u32 = 0U"),
)
_SIZES = {"32": ("32", "96", "64", "253", "23", "-126", "255", "127"),
          "64": ("64", "768", "128", "2045", "53", "-1022", "2047", "1023"), "16": ("16",)}


def _filled(text: str, sizes: tuple[str | None, ...]) -> str:
    found = [s for s in sizes if s is not None]
    size = next((s for s in reversed(found) if s.isdigit()), "")
    for i, each in enumerate(_SIZES.get(size, ())):
        text = text.replace(f"{{{i}}}", each)
    return text.replace("{-1}", size)


@functools.cache
def _table(family: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in (family, "rdna4", "rdna3", "cdna"):
        module = importlib.import_module(f"tinygrad.runtime.autogen.amd.{each}.str_pcode")
        for op, text in module.PCODE.items():
            found.setdefault(plain(op.name), text)
    return found


def plain(name: str) -> str:
    """An opcode's name without what only says how it is encoded."""
    return re.sub(r"_(E32|E64|DPP|SDWA)$", "", re.sub("^V_(DUAL|S)_", "V_", name))


@functools.cache
def text(family: str, name: str) -> str | None:
    """The meaning of an instruction as pseudo-code, "" where it has none here; None where none is known."""
    name = plain(name)
    if _NOTHING.match(name):
        return ""
    for pattern, own in _OWN:
        if match := re.match(pattern, name):
            return _filled(own, match.groups())
    found = _table(family).get(name)
    if found is not None and name.startswith("V_DIV_FIXUP"):
        # A quotient that far beyond range that the refinement before was infinity less infinity is left open.
        return re.sub(r"exponent\(S1\.f(\d+)\) == (\d+) then",
                      r"(exponent(S1.f\1) == \2) || isNAN(64'F(S0.f\1)) then", found)
    return found


def clamped(name: str) -> str | None:
    """The meaning of an integer instruction that saturates."""
    match = re.match(r"V_(ADD|SUB|SUBREV)_(?:NC_|CO_)?([UI])(16|32)$", plain(name))
    if match is None:
        return None
    what, kind, bits = match.group(1).lower(), match.group(2).lower(), match.group(3)
    first, second = ("S1", "S0") if what == "subrev" else ("S0", "S1")
    return f"D0.{kind}{bits} = {what[:3]}_sat_{kind}({first}.{kind}{bits}, {second}.{kind}{bits})"
