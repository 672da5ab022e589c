"""Compiles the C files of the package where there is a C compiler; elsewhere it is pure Python."""

import os
import shlex
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGS = ["-O3", "-std=c99", "-ffp-contract=fast", "-fno-trapping-math", "-fPIC", "-shared"]

# With several threads; or where the compiler does not know them with one.
THREADS = (["-fopenmp"], [])


class Compile(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        for source in sorted(Path(self.root, "src", "temperance").rglob("*.c")):
            library = source.with_suffix(".so")
            library.unlink(missing_ok=True)
            try:
                compile_with_threads(source, library)
            except (OSError, subprocess.CalledProcessError) as error:
                why = getattr(error, "stderr", None) or error
                self.app.display_warning(f"{source.name} was not compiled, torch will do its work more slowly: {why}")
                continue
            build_data["artifacts"].append(library.relative_to(self.root).as_posix())
            build_data["pure_python"] = False
            # The library knows nothing of Python, so that any version on this kind of machine can load it.
            build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")


def compile_with_threads(source: Path, library: Path) -> None:
    """With as much as this compiler has; raises what the last try ended in."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    for threads in THREADS:
        command = [*compiler, *FLAGS, *threads, str(source), "-o", str(library)]
        found = subprocess.run(command, capture_output=True, text=True)
        if not found.returncode:
            return
    found.check_returncode()
