"""The program that starts a BIOS machine's system from the disk that COD has written, whatever
number the BIOS gives this disk.

A BIOS numbers its disks anew at each start, depending on its set-up, on the disks present and on
the device that it booted from. A number that was right when the node was primed may mean another
disk later. The program therefore finds the disk by its signature, four bytes of the first sector:
it reads the first sector of each disk through the BIOS, and starts the disk with the signature.
cprime has made sure that no other disk of the node has the same.

The program has the form of a Linux kernel (the kernel's Documentation/x86/boot.rst, protocol 2.03),
because each loader in use can start a kernel, and shuts down the network card before. Its
protected-mode part is empty.
"""

from __future__ import annotations

import struct

from cod.wire import realmode

SECTOR = 512
# in the file, behind the header; the loader sets CS so that the file's byte 0x200 has address 0
_ENTRY = 0x230

_CODE = """
fa 31c0 8ed0 8ec0 bc007c fb fc       cli; ss = es = 0; sp = 0x7c00; sti; cld
8cc8 8ed8                            ds = cs
b280                                 dl = 0x80: the first disk
next: bd0300                         bp = 3 attempts
again: 52                            push dx
b80102 bb007c b90100 b600 cd13       int 0x13, ah = 2: read sector 1 of cylinder 0, head 0, to es:0x7c00
5a 73 ^read                          pop dx; jnc read
52 31c0 cd13 5a                      int 0x13, ah = 0: reset the disk
4d 75 ^again eb ^skip                dec bp; jnz again; jmp skip
read: 26813efe7d55aa 75 ^skip        is there a boot signature? jne skip
803e >any 00 75 ^start               does any disk do? jne start
2666a1b87d 663b06 >wanted 74 ^start  eax = the disk's signature; je start
803e >first 00 75 ^skip              is this the first disk with a boot signature?
8816 >first                          first = dl
skip: fec2                           inc dl
26a07504 3c10 73 ^more b010          al = the BIOS's count of disks (40:75), at least 16: some count badly
more: 0480 38c2 72 ^next             cmp dl, 0x80 + al; jb next
8a16 >first 84d2 74 ^none            no disk has the signature
803e >lenient 00 74 ^none            may another disk be started?
c606 >any 01 eb ^next                start the first one that can be
none: be >text                       print why nothing is started
char: ac 84c0 74 ^wait               next character; zero ends the text
b40e bb0700 cd10 eb ^char            int 0x10, ah = 0xe
wait: b99800 ba8096 b486 cd15        int 0x15, ah = 0x86: ten seconds
ea0000ffff                           reset the machine
start: 31c0 8ed8                     ds = 0
ea007c0000                           jmp 0:0x7c00, dl = the disk's number
"""


def loader(signature: int, lenient: bool = False) -> bytes:
    """Return the program for the disk with that signature.

    lenient  start the first disk with a boot sector if no disk has the signature: for a system
             whose owner may have written another partition table. A disk that was just written
             either has its signature, or is not seen by the BIOS
    """
    text = (
        f"\r\nCOD: the BIOS has no disk with signature {signature:08x}; rebooting\r\n".encode()
        + b"\0"
    )
    data = {
        "wanted": struct.pack("<I", signature),
        "lenient": bytes([lenient]),
        "any": b"\0",
        "first": b"\0",
        "text": text,
    }
    code = realmode.assemble(_CODE, data, _ENTRY - SECTOR)
    # Up to its code the file is the kernel's setup header at 0x1f1.
    head = bytearray(_ENTRY)
    # one sector of setup behind this
    struct.pack_into("<BHIHHHH", head, 0x1F1, 1, 0, SECTOR // 16, 0, 0, 0, 0xAA55)
    struct.pack_into("<2s4sH", head, 0x200, bytes([0xEB, _ENTRY - 0x202]), b"HdrS", 0x0203)
    struct.pack_into("<BB", head, 0x210, 0, 1)  # loaded high
    struct.pack_into("<I", head, 0x214, 0x100000)
    struct.pack_into("<I", head, 0x22C, 0x37FFFFFF)
    whole = (bytes(head) + code).ljust(2 * SECTOR, b"\0")
    return whole + bytes(SECTOR)  # a protected-mode part must be there
