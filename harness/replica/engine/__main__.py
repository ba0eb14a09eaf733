"""``python -m harness.replica.engine``: can be read what a server would be asked? Starts and asks nothing; says why not."""

import sys

from harness.replica.engine.questions import questions
from harness.replica.engine.settings import from_environment
from harness.replica.errors import WorkloadError

if __name__ == "__main__":
    try:
        next(questions(from_environment(), 0))
    except WorkloadError as error:
        sys.exit(str(error))
