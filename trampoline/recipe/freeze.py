"""Run by the ramdisk's own interpreter, on the build machine: the agent and all it imports,
compiled into one zip.

    python3.11 -S freeze.py CHECKOUT ZIP MODULE... -- STANDARD_MODULE...

The needed modules of the standard library are found by importing the named ones: all modules that
are loaded afterwards go into the zip. Prints a JSON object: `modules`, the names in the zip;
`dynamic`, files of extension modules.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

# Never loaded, as they would need OpenSSL, bzip2 and xz. The standard library tries to load them,
# and works without.
ABSENT = ("_bz2", "_hashlib", "_lzma", "_ssl", "ssl")
# Loaded late, by name: codecs, and what shows a traceback.
LATE = (
    "encodings.ascii",
    "encodings.latin_1",
    "encodings.utf_8",
    "encodings.utf_16_le",
    "linecache",
    "traceback",
)


def loaded(names: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return (standard modules that are loaded once `names` are, by name, with their source files;
    files of extension modules).

    Must be called before anything else is imported. Modules frozen into the interpreter are left
    out.
    """
    for name in ABSENT:
        sys.modules[name] = None  # type: ignore[assignment]
    for name in [*sorted(set(names) - set(ABSENT)), *LATE]:
        __import__(name)
    sources, dynamic = {}, []
    for name, module in list(sys.modules.items()):
        file = str(getattr(module, "__file__", None) or "")
        if file.endswith(".so"):
            dynamic.append(file)
        elif file.endswith(".py") and name != "__main__" and module.__spec__.origin != "frozen":  # type: ignore[union-attr]
            sources[module.__name__] = file
    return sources, sorted(dynamic)


def bytecode(name: str, path: Path, level: int) -> tuple[str, bytes]:
    """Return a module's path in the zip, and its bytecode as an unchecked hash-based pyc (PEP 552),
    which contains no times."""
    import importlib.util
    import marshal

    place = name.replace(".", "/") + ("/__init__" if path.name == "__init__.py" else "")
    compiled = compile(path.read_bytes(), f"{place}.py", "exec", dont_inherit=True, optimize=level)
    return f"{place}.pyc", importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(
        8
    ) + marshal.dumps(compiled)


def main(checkout: str, target: str, *names: str) -> None:
    """Write the zip without compression, because the ramdisk is compressed as a whole, and Python
    then starts faster."""
    middle = names.index("--")
    sources, dynamic = loaded(list(names[middle + 1 :]))
    import json
    import zipfile
    from pathlib import Path

    files = dict(bytecode(name, Path(path), 2) for name, path in sources.items())
    for name in names[:middle]:
        base = Path(checkout, *name.split("."))
        path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
        # Docstrings stay in these: without them, dataclasses generate one for each record at every
        # start, which takes longer.
        files.update([bytecode(name, path, 1)])
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for place in sorted(files):
            archive.writestr(zipfile.ZipInfo(place, (1980, 1, 1, 0, 0, 0)), files[place])
    print(json.dumps({"modules": sorted({*sources, *names[:middle]}), "dynamic": dynamic}))


if __name__ == "__main__":
    main(*sys.argv[1:])
