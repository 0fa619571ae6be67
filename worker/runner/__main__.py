"""The start of the zip file with which a machine runs a job: `python3 runner.pyz MODULE ARGUMENTS`."""

import runpy
import sys

if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
