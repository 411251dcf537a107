"""Client architectures: the processor and firmware that a machine names in DHCP option 93.

The numbers are those of IANA's registry "Processor Architecture Types" (RFC 4578 §2.1, RFC 5970
§3.3). COD has loaders and kernels for x86 machines with BIOS and with 64-bit UEFI. Other machines
get no answer: a loader for the wrong architecture would hang them, while silence lets them go on to
the next server or to their disks. They are listed for the administrator.
"""

from __future__ import annotations

BIOS = frozenset({0, None})  # None: old firmware that does not say
UEFI = frozenset({7, 9, 16})  # x64 by PXE (two numbers are in use), x64 by HTTP
SUPPORTED = BIOS | UEFI

NAMES = {
    0: "x86 BIOS",
    1: "NEC PC-98",
    2: "Itanium",
    3: "DEC Alpha",
    4: "Arc x86",
    5: "Intel Lean Client",
    6: "32-bit x86 UEFI",
    7: "x64 UEFI",
    8: "Xscale UEFI",
    9: "x64 UEFI",
    10: "32-bit ARM UEFI",
    11: "64-bit ARM UEFI",
    12: "PowerPC Open Firmware",
    13: "PowerPC ePAPR",
    14: "POWER OPAL v3",
    15: "32-bit x86 UEFI by HTTP",
    16: "x64 UEFI by HTTP",
    17: "EFI byte code by HTTP",
    18: "32-bit ARM UEFI by HTTP",
    19: "64-bit ARM UEFI by HTTP",
    20: "x86 BIOS by HTTP",
    21: "32-bit ARM U-Boot",
    22: "64-bit ARM U-Boot",
    23: "32-bit ARM U-Boot by HTTP",
    24: "64-bit ARM U-Boot by HTTP",
    25: "32-bit RISC-V UEFI",
    26: "32-bit RISC-V UEFI by HTTP",
    27: "64-bit RISC-V UEFI",
    28: "64-bit RISC-V UEFI by HTTP",
    29: "128-bit RISC-V UEFI",
    30: "128-bit RISC-V UEFI by HTTP",
    31: "S/390 basic",
    32: "S/390 extended",
    33: "32-bit MIPS UEFI",
    34: "64-bit MIPS UEFI",
    35: "32-bit Sunway UEFI",
    36: "64-bit Sunway UEFI",
    37: "32-bit LoongArch UEFI",
    38: "32-bit LoongArch UEFI by HTTP",
    39: "64-bit LoongArch UEFI",
    40: "64-bit LoongArch UEFI by HTTP",
    41: "ARM rpiboot",
}
_REMEDIES = {
    6: "if its processor has 64 bits, set the firmware to BIOS (legacy) boot",
    15: "if its processor has 64 bits, set the firmware to BIOS (legacy) boot",
    20: "set the firmware to boot by PXE",
}


def refusal(arch: int | None) -> str:
    """Return why a machine of an architecture that is not in `SUPPORTED` cannot be booted, as a
    phrase that follows the machine's name."""
    name = NAMES.get(arch or 0, "of an unknown architecture")
    remedy = _REMEDIES.get(
        arch or 0, "boot it from another server, or take network boot out of its boot order"
    )
    return (
        f"its firmware is {name} (architecture {arch}); COD boots x86 machines with BIOS or 64-bit"
        f" UEFI; {remedy}"
    )
