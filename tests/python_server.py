"""Runs Python scripts for the unit tests, each in a child of this process, which has imported what takes seconds.

usage: python_server.py MODULE...

Reads a JSON array [SCRIPT, OUTPUT, FOLDER, ARGUMENT...] a line: the script runs in FOLDER, with stdout and stderr in OUTPUT.
Answers with its exit code. The first line that it prints is "ready", or "missing" if a module cannot be imported.
"""

import importlib
import json
import os
import runpy
import sys
import traceback

os.environ.update({"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"})  # a child has none of this process's threads


def child(script, output, folder, *arguments):
    code = 1
    try:
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 1)
        os.dup2(1, 2)
        os.chdir(folder)
        sys.argv, sys.path[0] = [script, *arguments], os.path.dirname(script)
        runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main():
    try:
        for module in sys.argv[1:]:
            importlib.import_module(module)
    except ImportError:
        print("missing", flush=True)
        return
    print("ready", flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            child(*json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


main()
