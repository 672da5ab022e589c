"""Programs in processes that do not import libraries anew: each is a fork of one that has done nothing else."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

# Prepares itself, and then runs one program after the other. Each is a line: its folder and its Python.
PARENT = """
import json, os, sys, traceback, warnings

exec(sys.argv[1])
for line in sys.stdin:
    folder, program = json.loads(line)
    with warnings.catch_warnings(action="ignore"):  # Python's own, about the threads of libraries, which do nothing yet
        child = os.fork()
    if not child:
        os.chdir(folder)
        for number, name in ((1, ".stdout"), (2, ".stderr")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        code = 1
        try:
            exec(compile(program, "page.py", "exec"), {"__name__": "__main__"})
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Ended(NamedTuple):
    """How a program or a command ended, and what it said."""

    code: int
    out: str
    err: str


class Run(Protocol):
    """Runs a program in a folder."""

    def __call__(self, program: str, folder: Path) -> Ended: ...


@contextmanager
def runner(prepare: str, **environment: str) -> Iterator[Run]:
    """A way to run programs, in which every warning is an error, after what prepares the process for all of them."""
    command = [sys.executable, "-W", "error", "-c", PARENT, prepare]
    around = os.environ | environment
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=around) as parent:
        assert parent.stdin is not None and parent.stdout is not None

        def run(program: str, folder: Path) -> Ended:
            assert parent.stdin is not None and parent.stdout is not None
            parent.stdin.write(json.dumps([str(folder), program]) + "\n")
            parent.stdin.flush()
            code = int(parent.stdout.readline())
            return Ended(code, *((folder / name).read_text() for name in (".stdout", ".stderr")))

        yield run
        parent.stdin.close()


def command(*words: str) -> str:
    """A program that is a command of temperance."""
    return f"import sys; from temperance.cli import main; sys.exit(main({list(words)!r}))"
