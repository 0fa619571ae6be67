"""What lines of a log tell of a failure: one table. The first rule that matches counts.

A pattern is searched by line; some lines may follow.
"""

import re
from typing import NamedTuple

CLASSES = {
    "code": "the program, its command or its options",
    "memory": "the memory of the host",
    "device_memory": "the memory of a GPU or TPU",
    "image": "the image or the packages",
    "data": "files that the program needs",
    "disk": "disk space",
    "network": "the network, or a server in it",
    "machine": "the machine, or this service",
    "preempted": "the machine was taken away",
    "time": "a time limit",
    "budget": "a limit of cost",
}


class Rule(NamedTuple):
    cause: str
    pattern: re.Pattern[str]
    says: str | None  # why the command ended, to follow its exit code: `because …: what to do`
    option: str | None  # the option of a clone that helps
    source: re.Pattern[str] | None  # of a line of the traceback


def _rule(
    cause: str,
    pattern: str,
    says: str | None = None,
    option: str | None = None,
    source: str = "",
) -> Rule:
    pattern = pattern.replace("ERR ", r"^(?:[\w.]+\.)?")
    compiled = re.compile(source, re.MULTILINE) if source else None
    return Rule(cause, re.compile(pattern, re.MULTILINE), says, option, compiled)


_DEVICE_FULL = (
    "after a device ran out of memory: choose a smaller batch, or a machine type whose GPU or TPU has more memory"
)
_HOST_FULL = "after the machine's memory ran out: use a smaller batch, or more memory (--memoryMb)"
_SHARED_FULL = "because /dev/shm is full: give it more room (--sharedMemMb), or start fewer data loader workers"
_NO_NAME = (
    "after a host name could not be resolved: upload what it downloads with the folder or with `gradient-cli "
    "storage put`"
)
_DISK_FULL = "because a disk is full: store less in the workspace, the artifacts and /tmp"
_NO_TAGS = (
    "because git has no tags here: only one commit is fetched, without tags. Run `git fetch --unshallow --tags` first"
)
_TOO_MANY = (
    "after it could not start another process or thread: start fewer (such as data loader workers), or have an "
    "administrator raise GRADIENT_DOCKER__PIDS"
)
_NO_GPU = (
    "because it found no GPU: choose a machine type with a GPU, and a --container whose framework is built for CUDA"
)
_LOGIN = (
    "because a server refused its login: store it with `gradient-cli secrets set`, and pass it with -e NAME=secret:NAME"
)

RULES = (
    _rule("code", r"^EOFError: EOF when reading a line\Z", "after it asked for input, which jobs do not have"),
    _rule(
        "code",
        r"^(?:ModuleNotFoundError|.*python[\d.]*): No module named '?(?P<name>[\w.]{1,100})'?[^\n]*\Z",
        "because Python has no module {name}: {remedy}",
    ),
    # Of shared memory before disks and host memory, of hosts before devices.
    _rule(
        "memory",
        r"/dev/[s]hm.*No space left|No space left.*/dev/[s]hm|unable to \w+ (?:file|shared memory).*torch_\d+"
        r"|[Bb]us error.*shared memory",
        _SHARED_FULL,
        "sharedMemMb",
    ),
    _rule(
        "disk",
        r"No space left on device|Disk quota exceeded|[Dd]isk is full|\b(?:ENOSPC|EDQUOT)\b"
        r"|Wrote only \d+ of \d+ bytes|inline_container\.cc.*unexpected pos|file write failed",
        _DISK_FULL,
    ),
    _rule(
        "memory",
        r"OOM when allocating tensor.*device:CPU|ERR _?(?:Array)?MemoryError\b|DefaultCPUAllocator: |std::bad_alloc"
        r"|[Cc]annot allocate memory|java\.lang\.OutOfMemoryError|JavaScript heap out of memory|cannot allocate vector"
        r"|DataLoader worker .*killed by signal: Killed|TerminatedWorkerError: .*memory|virtual memory exhausted",
        _HOST_FULL,
        "memoryMb",
    ),
    _rule(
        "memory",
        r"DataLoader worker .*exited unexpectedly",
        _HOST_FULL,
        "memoryMb",
        source=r"DataLoader worker .*killed by signal: Killed",
    ),
    _rule(
        "device_memory",
        r"(?:CUDA|HIP|MPS)(?: error| backend)?(?:: | )out of memory|OOM when allocating tensor"
        r"|RESOURCE_EXHAUSTED: .*(?:memory|allocat)|CU(?:BLAS|DNN)_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation",
        _DEVICE_FULL,
    ),
    _rule("machine", r"No CUDA GPUs are available|Found no NVIDIA driver|no CUDA-capable", _NO_GPU),
    _rule("image", r"not compiled with CUDA", _NO_GPU),
    _rule(
        "machine",
        r"uncorrectable (?:NVLink |ECC )|GPU is lost|fallen off the bus|Driver/library version mismatch"
        r"|[Uu]nable to determine the device handle|CUDA unknown error|cudaErrorSystemNotReady",
        "after a GPU of the machine failed: run the job again, and tell the machine's operator",
        "maxAttempts",
    ),
    _rule(
        "machine",
        r"compiled to use (?:AVX|SSE|FMA)\w* instructions, but these aren't available|^Illegal instruction|^SIGILL\b",
    ),
    _rule(
        "image",
        r"no kernel image is available for execution on the device",
        "because its framework is not built for this GPU: use a --container with a newer version of the framework",
    ),
    _rule(
        "image",
        r"CUDA driver version is insufficient|NVIDIA driver on your system is too old",
        "because the machine's NVIDIA driver is too old for its CUDA: use a --container with an older CUDA",
    ),
    _rule(
        "code",
        r"can't start new thread|[Cc]annot fork|(?:fork|pthread_create|[Tt]hread creation|native thread).*"
        r"Resource temporarily unavailable",
        _TOO_MANY,
    ),
    _rule("code", r"ERR BlockingIOError: \[Errno 11\]", _TOO_MANY, source=r"^\s+(?:self\.)?pid = os\.fork\(\)"),
    _rule("code", r"Too many open files", "because it has too many files open: close them, or start fewer workers"),
    # What a program reaches over the network; a refused login or a missing address is no fault of the network.
    _rule(
        "code",
        r"\b401\b.*(?:Unauthorized|Client Error)|\b403\b.*(?:Forbidden|Client Error)|Unable to locate credentials"
        r"|GatedRepoError|No API key configured|NoCredentialsError|InvalidAccessKeyId|[Aa]uthentication failed|Invalid (?:API|username)"
        r"|[Pp]ermission denied \(publickey|could not read Username for",
        _LOGIN,
    ),
    _rule(
        "data", r"\b404\b.*(?:Not Found|Client Error)|RepositoryNotFoundError|NoSuchKey|NoSuchBucket|EntryNotFoundError"
    ),
    _rule("network", r"Name or service not known|failure in name resolution|(?:to|not) (?:resolve|lookup) ", _NO_NAME),
    _rule(
        "network",
        r"CERTIFICATE_VERIFY_FAILED|SSL certificate problem|self.signed certificate|unable to get local issuer",
        "because the certificate of a server is not trusted here: name its authority with -e SSL_CERT_FILE=PATH",
    ),
    _rule(
        "network",
        r"ERR (?:(?:New|Remote)?Connection\w*(?:Error|Refused|Timeout)|(?:Connect|Read|Proxy|SSL)\w*(?:Error|Timeout)|"
        r"MaxRetryError|ServerDisconnectedError|IncompleteRead|ClientConnectorError|EndpointConnectionError): "
        r"|Connection (?:refused|reset by peer|timed out)|Network is unreachable|No route to host"
        r"|urlopen error timed out"
        r"|[Ff]ailed to connect to|\b(?:429|50[0234])\b.*(?:Too Many|Server Error|Bad Gateway|Unavailable|Gateway Time)"
        r"|[Tt]he read operation timed out|^(?:socket\.timeout|TimeoutError): (?:timed out|\[Errno 110\])|early EOF|RPC failed; |Operation timed out",
        "after a server could not be reached or did not answer: try it again later (--maxAttempts 3)",
        "maxAttempts",
    ),
    _rule(
        "code",
        r"^(?:SyntaxError|IndentationError|TabError): |^[\w./-]+: error: (?:unrecognized arguments"
        r"|the following arguments"
        r"|argument |ambiguous option)|^(?:Error: )?(?:No such (?:option|command)|Missing (?:option|argument|parameter)"
        r"|Invalid value|Got unexpected)|[Nn]o such option: |can't open file |Weights only load failed|: syntax error|unbound variable"
        r"|command not found",
    ),
    # Packages and programs.
    _rule(
        "image",
        r"^ERROR: (?:No matching distribution|Could not find a version|Cannot install|Failed building wheel"
        r"|ResolutionImp"
        r"|.*Requires-Python|Package '.*' requires a different Python|Failed to build)|No solution found when resolving"
        r"|error: externally-managed-environment|Failed to build `|was not found in the package registry"
        r"|error while loading shared libraries: |cannot open shared object file|ImportError: .*(?:GLIBC"
        r"|undefined symbol)"
        r"|^E: (?:Unable to locate package|Could not open lock)|numpy\.dtype size changed|compiled using NumPy 1",
    ),
    _rule("image", "ERR FileNotFoundError: ", source=r"\b_execute_child\b"),  # a program that Python starts
    # A file that is written: no data is missing.
    _rule(
        "code",
        "ERR (?:FileNotFoundError|OSError|RuntimeError: Parent directory)",
        source=r"""open\(.*,\s*(?:mode=)?['"][wax]|savefig\(|\.to_\w+\(|\.save\w*\(|torch\.save|[^.\w]dump\(""",
    ),
    _rule(
        "code",
        r"ERR (?:PermissionError: |OSError: \[Errno 30\])|Read-only file system|: Permission denied\Z|EACCES",
        "because it may not use a file or folder: write to the workspace, $GRADIENT_ARTIFACTS_DIR or /tmp",
    ),
    _rule(
        "code", r"Address already in use|EADDRINUSE", "because a port that it listens on is in use: choose another one"
    ),
    _rule(
        "data",
        r"^FileNotFoundError: \[Errno 2\] No such file or directory: (?P<name>'[^']{1,300}')\Z",
        "because the job has no file {name}",
    ),
    _rule(
        "data",
        r"ERR FileNotFoundError|No such file or directory|does not appear to be a (?:git repository|tar)"
        r"|repository .* does not exist"
        r"|ERR (?:JSONDecodeError|UnicodeDecodeError|UnidentifiedImageError|BadZipFile|BadGzipFile"
        r"|UnpicklingError|ReadError|"
        r"ParserError|EmptyDataError|SafetensorError|ArrowInvalid|LZMAError|DecompressionBombError|ScannerError)\b"
        r"|EOFError: Ran out of input|image file is truncated|signature not found|Not a gzipped file"
        r"|(?:not|unrecognized|invalid|incorrect|bad) (?:archive|header|magic|zip)|CRC check failed"
        r"|[Uu]nexpected end of "
        r"(?:file|data|archive|JSON)|PytorchStreamReader|not a zip archive|truncated (?:file|record)|DATA_LOSS|corrupted record|file is not a database|image is malformed"
        r"|[Ff]ile not found",
    ),
    _rule("code", r"^fatal: No names found, cannot describe anything", _NO_TAGS),
    _rule(
        "code",
        r"ERR (?:AssertionError|AttributeError|ImportError|IndexError|KeyError|ModuleNotFoundError|NameError|"
        r"NotImplementedError|OverflowError|RecursionError|StopIteration|TypeError|UnboundLocalError|ValueError|"
        r"ValidationError|InvalidArgumentError|FloatingPointError|ZeroDivisionError|UndefinedMetricWarning)\b"
        r"|RuntimeError: .*(?:shape|size of tensor|dtype|scalar type|same device|requires grad|inplace|backward|"
        r"state_dict|dimension|channels|NaN|nan)|device-side assert"
        r"|error: (?:expected|undeclared|unknown type)|undefined reference|panicked at|Segmentation fault"
        r"|^SIG(?:SEGV|FPE)\b"
        r"|Floating point exception|terminate called after throwing|Assertion .*failed|[Mm]issing separator|No rule to make target",
    ),
)
