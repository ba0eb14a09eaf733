#!/usr/bin/env python3
"""Stands as argv[0] of the user-mode kernel.

On a guest reboot the kernel executes its argv[0] again with its old descriptors open; the tap device among them would
answer the new kernel with EBUSY. So they are closed here before the real kernel takes over.
"""

import os
import sys

os.closerange(3, os.sysconf("SC_OPEN_MAX"))
os.execv(os.environ["UML_KERNEL"], sys.argv)  # noqa: S606 - replacing this process is the point
