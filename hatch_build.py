"""Compiles the C file of the package where there is a C compiler; elsewhere the package is pure Python."""

import os
import shlex
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

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
        build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
