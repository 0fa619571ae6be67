import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
WARNINGS_ONLY = "2"


@contextmanager
def quiet_tensorflow() -> Iterator[None]:
    """Keep TensorFlow's start-up notices off the terminal while it is imported.

    The log level alone is not enough: some notices are written before TensorFlow has read it. If the block fails, the
    notices are shown after all. TF_CPP_MIN_LOG_LEVEL=0 or 1 in the environment lets everything through.
    """
    os.environ["KERAS_BACKEND"] = "tensorflow"
    if os.environ.setdefault(LOG_LEVEL, WARNINGS_ONLY) < WARNINGS_ONLY:
        yield
        return
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as held_back:
        os.dup2(held_back.fileno(), 2)
        try:
            yield
        except BaseException:
            held_back.seek(0)
            os.write(terminal, held_back.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
