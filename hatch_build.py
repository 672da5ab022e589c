"""Compiles the C file of the package where there is a C compiler; elsewhere the package is pure Python."""

import os
import platform
import shlex
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Of an ELF file, which says for which kind of machine a compiler works.
MACHINES = {62: "x86_64", 183: "aarch64"}
FLAGS = ["-O3", "-std=c99", "-ffp-contract=fast", "-fno-trapping-math", "-fPIC", "-shared"]


class Compile(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        source = Path(self.root, "src", "temperance", "_rows.c")
        library = source.with_suffix(".so")
        library.unlink(missing_ok=True)
        compiler = shlex.split(os.environ.get("CC", "cc"))
        try:
            subprocess.run([*compiler, *FLAGS, source, "-o", library], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            why = getattr(error, "stderr", None) or error
            self.app.display_warning(f"{source.name} was not compiled; torch does its work more slowly: {why}")
            return
        build_data["artifacts"].append(library.relative_to(self.root).as_posix())
        build_data["pure_python"] = False
        # The library does not depend on Python, so any version on this kind of machine can load it.
        build_data["tag"] = "py3-none-" + _platform(library)


def _platform(library: Path) -> str:
    """Where a library can be loaded: on Linux with any glibc since 2.17, as `make package` has `auditwheel` confirm."""
    machine = MACHINES.get(int.from_bytes(library.read_bytes()[18:20], "little"))
    if platform.libc_ver()[0] == "glibc" and machine is not None:
        return f"manylinux_2_17_{machine}"
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
