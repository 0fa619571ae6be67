"""Reasons by exit code and the end of the log."""

import pytest

from core.jobs.exit_codes import reason_of_exit
from core.jobs.reasons import REASONS, reason_message
from core.jobs.states import JobState
from gradient_cli.workspace.dependencies.imports import remedy_for

MISSING = "command_not_found"
NO_MODULE = "Traceback (most recent call last):\n  File 'b'\nModuleNotFoundError: No module named 'a'"


@pytest.mark.parametrize(
    ("code", "log", "reason", "says"),
    [
        (0, "bash: line 1: foo: command not found", "completed", "exit code 0"),
        (1, "", "exit_nonzero", "exit code 1."),
        (126, "bash: line 1: ./a: Permission denied", "command_not_executable", "chmod +x"),
        (126, "sh: 1: ./a: Permission denied", "command_not_executable", "chmod +x"),
        (126, "run.sh: eval: line 86: /root/e.sh: Permission denied", "command_not_executable", "--ignoreEntrypoint"),
        (126, "it returned 126 itself", "exit_nonzero", "exit code 126."),
        (127, "bash: line 1: tranier: command not found", MISSING, "tranier was not found. Check its spelling"),
        (127, "sh: 1: tranier: not found", MISSING, "tranier"),
        (127, "/bin/sh: tranier: not found\nand a line more", MISSING, "tranier"),
        (127, "bash: line 3: ./run.sh: No such file or directory", MISSING, "uploaded folder"),
        (127, "/usr/bin/env: \u2018nothing\u2019: No such file or directory", MISSING, "nothing"),
        (127, "env: can't execute 'nothing': No such file or directory", MISSING, "nothing"),
        (127, "nohup: failed to run command 'nothing': No such file or directory", MISSING, "nothing"),
        (127, "bash: line 1: ./a: cannot execute: required file not found", MISSING, "first line"),
        (127, "bash: line 1: python: command not found", MISSING, "/root"),
        (127, "bash: line 1: pip3: command not found", MISSING, "python3"),
        (127, "bash: line 1: conda: command not found", MISSING, "requirements.txt"),
        (127, "bash: line 2: module: command not found", MISSING, "clusters"),
        (127, "train.sh: line 2: srun: command not found", MISSING, "--machineType"),
        (127, "bash: line 1: $1: unbound variable", "exit_nonzero", "exit code 127."),
        (127, "cat: data: No such file or directory", "exit_nonzero", "exit code 127."),
        (127, "bash: line 1: foo: command not found" + "\nepoch" * 10, "exit_nonzero", "exit code 127."),
        (1, "Name: EOFError: EOF when reading a line", "exit_nonzero", "exit code 1."),
        (
            1,
            "Traceback\nEOFError: EOF when reading a line\n",
            "exit_nonzero",
            "asked for input, which jobs do not have.",
        ),
        (
            1,
            "Traceback\nModuleNotFoundError: No module named 'a.b'\n",
            "exit_nonzero",
            "no module a.b: list its package",
        ),
        (
            1,
            "/usr/bin/python3: No module named torch",
            "exit_nonzero",
            "no module torch: list torch in requirements.txt, or submit with --with torch",
        ),
        (1, "ModuleNotFoundError: No module named 'cv2'", "exit_nonzero", "--with opencv-python-headless"),
        (1, "ModuleNotFoundError: No module named 'a'\ncaught, but 1", "exit_nonzero", "exit code 1."),
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB.", "exit_nonzero", "smaller batch"),
        (
            1,
            "RuntimeError: CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`",
            "exit_nonzero",
            "smaller batch",
        ),
        (1, "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.", "exit_nonzero", "smaller batch"),
        (1, "OOM when allocating tensor with shape[9,9] [Op:Add]\n\nHint: see", "exit_nonzero", "smaller batch"),
        (1, "AssertionError: Torch not compiled with CUDA enabled", "exit_nonzero", "machine type with a GPU"),
        (
            1,
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            "exit_nonzero",
            "newer",
        ),
        (1, "RuntimeError: The NVIDIA driver on your system is too old (found 11040).", "exit_nonzero", "older CUDA"),
        (1, "RuntimeError: can't start new thread", "exit_nonzero", "GRADIENT_DOCKER__PIDS"),
        (254, "bash: fork: retry: Resource temporarily unavailable", "exit_nonzero", "GRADIENT_DOCKER__PIDS"),
        (
            1,
            "    self.pid = os.fork()\nBlockingIOError: [Errno 11] Resource temporarily unavailable",
            "exit_nonzero",
            "GRADIENT_DOCKER__PIDS",
        ),
        (1, "BlockingIOError: [Errno 11] Resource temporarily unavailable", "exit_nonzero", "exit code 1."),
        (0, "CUDA out of memory; halved the batch\ndone", "completed", "exit code 0"),
        (1, f"{NO_MODULE}\n\nSet the environment variable HYDRA_FULL_ERROR=1 for a", "exit_nonzero", "no module a:"),
        (1, f"{NO_MODULE}\nE1127 02:13:22 12 torch/distributed/elastic/a.py:882] f\n-\n", "exit_nonzero", "module a:"),
        (2, f"{NO_MODULE}\nmake: *** [Makefile:2: train] Error 1\n", "exit_nonzero", "no module a:"),
        (
            2,
            f"{NO_MODULE}\nmake[1]: *** [x] Error 1\nmake[1]: Leaving directory\nmake: *** [y]",
            "exit_nonzero",
            "module a:",
        ),
        (1, f"{NO_MODULE}\nerror: Recipe `train` failed on line 2 with exit code 1", "exit_nonzero", "no module a:"),
        (1, f"{NO_MODULE}\n\nreal\t0m0.1s\nuser\t0m0.1s\nsys\t0m0.0s", "exit_nonzero", "no module a:"),
        (
            1,
            f"{NO_MODULE}\nTraceback (most recent call last):\n  File 'a'\nsubprocess.CalledProcessError: 'a'",
            "exit_nonzero",
            "no module a:",
        ),
        (
            1,
            "FileNotFoundError: [Errno 2] No such file or directory: 'data/a b.bin'",
            "exit_nonzero",
            "exit code 1, because the job has no file 'data/a b.bin'.",
        ),
        (1, "Tried https://a, got:\n<urlopen error [Errno -2] Name or service not known>\n", "exit_nonzero", "storage"),
        (128, "fatal: No names found, cannot describe anything.", "exit_nonzero", "git fetch --unshallow --tags"),
        (6, "curl: (6) Could not resolve host: a", "exit_nonzero", "storage put"),
        (137, "bash: line 1: 12 Killed    python main.py", "killed", "memory"),
        (137, "", "exit_nonzero", "SIGKILL"),
        (139, "Segmentation fault (core dumped)", "signalled", "by SIGSEGV"),
        (139, "", "exit_nonzero", "exit code 139: either its own, or the signal SIGSEGV"),
        (143, "Terminated", "signalled", "by SIGTERM"),
        (143, "done", "exit_nonzero", "exit code 143: either its own, or the signal SIGTERM"),
        (255, "Killed", "exit_nonzero", "exit code 255."),
    ],
)
def test_a_reason_beyond_the_exit_code_needs_evidence_in_the_log(code, log, reason, says):
    name, detail = reason_of_exit(code, log, remedy_for)
    assert name == reason
    assert says in reason_message(name, detail)
    assert REASONS[name].final is (JobState.SUCCEEDED if code == 0 else JobState.FAILED)
