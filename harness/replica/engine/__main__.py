"""``python -m harness.replica.engine``: can be read what a server would be asked? Starts and asks nothing; says why not."""

import os
import sys

from harness.replica.engine.questions import questions
from harness.replica.errors import WorkloadError
from harness.spec.replica import read_environment

if __name__ == "__main__":
    try:
        spec, _ = read_environment(os.environ)
        if spec.workload.server:
            next(questions(spec.workload.server, 0))
    except WorkloadError as error:
        sys.exit(str(error))
