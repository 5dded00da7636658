"""Are the libraries in a wheel what its name says? Their architecture, what they need, what they show.

    python wheels/examine.py dist/clearhead-0.2.0-py3-none-manylinux_2_17_x86_64.whl

Reads ELF and Mach-O itself, so that any machine can examine the wheels of all.
"""

from __future__ import annotations

import re
import struct
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

# What every Linux has that is as old as the tag, and every macOS. Of Linux, a C++ library is not among them.
LIBRARIES = {
    *("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2"),
    *("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"),
    *("/usr/lib/libSystem.B.dylib", "/usr/lib/libc++.1.dylib"),
}
# The engine's functions. On macOS also `new` and `delete`, weak, which the system unites with its own and
# which are the same, and two names that linkers give to a library itself.
SHOWN = re.compile(r"clearhead_\w+")
SHOWN_BY_MACOS = re.compile(r"_clearhead_\w+|__Z(n|d)[wal]\w+|___dso_handle|__mh_dylib_header")
FUNCTIONS = {"engine": "clearhead_engine", "training": "clearhead_loss"}  # one of each library's
ELF_MACHINES = {62: "x86_64", 183: "aarch64"}
MACH_MACHINES = {0x01000007: "x86_64", 0x0100000C: "arm64"}


@dataclass
class Binary:
    """What a shared library says about itself."""

    system: str
    machine: str
    needs: list[str] = field(default_factory=list)  # other libraries
    versions: set[str] = field(default_factory=set)  # of their symbols (Linux), or of the system (macOS)
    shows: set[str] = field(default_factory=set)


def read(data: bytes) -> Binary:
    """A shared library, 64-bit and little-endian."""
    if data[:6] == b"\x7fELF\x02\x01":
        return _read_elf(data)
    if data[:4] == b"\xcf\xfa\xed\xfe":
        return _read_mach(data)
    raise ValueError("this is neither an ELF nor a Mach-O library of 64 bits")


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def _read_elf(data: bytes) -> Binary:
    found = Binary("linux", ELF_MACHINES.get(struct.unpack_from("<H", data, 18)[0], "unknown"))
    (begin,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, begin + i * size) for i in range(count)]
    for _, kind, _, _, at, length, link, _, _, each in sections:
        names = sections[link][4]
        if kind == 6:  # SHT_DYNAMIC: DT_NEEDED entries
            entries = [struct.unpack_from("<QQ", data, i) for i in range(at, at + length, each)]
            found.needs += [_text(data, names + value) for tag, value in entries if tag == 1]
        elif kind == 11:  # SHT_DYNSYM: what is defined here and not local
            for i in range(at, at + length, each):
                name, info, _, section, _, _ = struct.unpack_from("<IBBHQQ", data, i)
                if section and info >> 4:
                    found.shows.add(_text(data, names + name))
        elif kind == 0x6FFFFFFE:  # SHT_GNU_verneed: libraries, and of each the versions
            next_library = at
            while True:
                _, _, _, first, step = struct.unpack_from("<HHIII", data, next_library)
                version = next_library + first
                while True:
                    _, _, _, name, further = struct.unpack_from("<IHHII", data, version)
                    found.versions.add(_text(data, names + name))
                    if not further:
                        break
                    version += further
                if not step:
                    break
                next_library += step
    return found


def _read_mach(data: bytes) -> Binary:
    _, machine, _, _, commands, _, _, _ = struct.unpack_from("<8I", data)
    found = Binary("macos", MACH_MACHINES.get(machine, "unknown"))
    at = 32
    for _ in range(commands):
        kind, size = struct.unpack_from("<II", data, at)
        if kind in (0xC, 0x80000018):  # LC_LOAD_DYLIB, and weak
            found.needs.append(_text(data, at + struct.unpack_from("<I", data, at + 8)[0]))
        elif kind == 0x32:  # LC_BUILD_VERSION: the oldest system
            oldest = struct.unpack_from("<I", data, at + 12)[0]
            found.versions.add(f"macOS_{oldest >> 16}.{oldest >> 8 & 255}")
        elif kind == 0x2:  # LC_SYMTAB: external, defined, not private
            symbols, count, names, _ = struct.unpack_from("<4I", data, at + 8)
            for i in range(symbols, symbols + 16 * count, 16):
                name, sort = struct.unpack_from("<IB", data, i)
                if sort & 0x01 and not sort & 0xF0 and sort & 0x0E:
                    found.shows.add(_text(data, names + name))
        at += size
    return found


def faults_of(binary: Binary, platform: str, kind: str = "engine") -> list[str]:
    """What does not fit a wheel with this platform tag."""
    linux = re.fullmatch(r"manylinux_(\d+)_(\d+)_(\w+)", platform)
    macos = re.fullmatch(r"macosx_(\d+)_(\d+)_(\w+)", platform)
    named = linux or macos
    if named is None:
        return [f"the tag '{platform}' says nothing about the system"]
    oldest, faults = (int(named[1]), int(named[2])), []
    if (binary.system, binary.machine) != ("linux" if linux else "macos", named[3]):
        faults.append(f"it is for {binary.system} on {binary.machine}")
    faults += [f"it needs {name}" for name in binary.needs if name not in LIBRARIES]
    for version in sorted(binary.versions):
        system, _, number = version.partition("_")
        parts = tuple(int(part) for part in number.split(".")) if number[:1].isdecimal() else (999,)
        if system != ("GLIBC" if linux else "macOS") or parts[:2] > oldest:
            faults.append(f"it needs {version}")
    shown = SHOWN if linux else SHOWN_BY_MACOS
    faults += [f"it shows {name}" for name in sorted(binary.shows) if not shown.fullmatch(name)]
    if not any(FUNCTIONS[kind] in name for name in binary.shows):
        faults.append(f"it does not show the {kind}'s functions")
    return faults


def examine(wheel: Path) -> list[str]:
    """What is said of a wheel's libraries; ends the program if they are not as they should be."""
    platform = wheel.stem.rpartition("-")[2]
    found = []
    with zipfile.ZipFile(wheel) as archive:
        names = sorted(name for name in archive.namelist() if "/built/" in name and name.endswith(".so"))
        kinds = [Path(name).name.partition("-")[0] for name in names]
        wanted = ["engine", "training"] if re.fullmatch(r"manylinux.*x86_64", platform) else ["engine"]
        if kinds != wanted:
            sys.exit(f"{wheel.name} has the libraries {kinds} inside instead of {wanted}.")
        for kind, name in zip(kinds, names, strict=True):
            binary = read(archive.read(name))
            if faults := faults_of(binary, platform, kind):
                sys.exit(f"The {kind} in {wheel.name} is not for every such machine: {'; '.join(faults)}.")
            size = archive.getinfo(name).file_size
            found += [
                f"{kind}: {binary.system} on {binary.machine}, {size:,} bytes, {len(binary.shows)} symbols",
                f"needs {', '.join(binary.needs)} ({', '.join(sorted(binary.versions))})",
            ]
    return found


if __name__ == "__main__":
    for each in sys.argv[1:]:
        print(each, *examine(Path(each)), sep="\n  ")
