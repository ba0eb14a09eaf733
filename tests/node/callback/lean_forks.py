"""Ansible callback: what each task's fork of Ansible would do again and the run does not need, for the same result.

A run forks for every task, and shares a processor with the machine that it waits for.
"""

import copy
import gc
import hashlib
import marshal
import os
from pathlib import Path
from types import CodeType
from typing import Any

import jinja2
from ansible import constants
from ansible._internal._templating._jinja_bits import _TemplateCompileContext
from ansible.plugins.callback import CallbackBase
from ansible.plugins.lookup import template

DOCUMENTATION = r"""
name: lean_forks
type: notification
short_description: Forks compile, copy and collect less
description: Keeps compiled templates beside the folder that the environment variable BUILT_MODULES names, collects no garbage, copies less.
"""

# Ansible's own thousandth of a second keeps the processor busy while the machine works on it.
ASK_EVERY_S = 0.005
# What else than its source decides what a template is compiled to.
SETTINGS = [
    *(f"{part}_{end}_string" for part in ("block", "variable", "comment") for end in ("start", "end")),
    *("line_statement_prefix", "line_comment_prefix", "trim_blocks", "lstrip_blocks", "newline_sequence"),
    *("keep_trailing_newline", "optimized", "is_async", "sandboxed"),
]


def keep_compiled(folder: Path) -> None:
    """Have templates that were compiled once, by any fork of any run, read from a folder."""
    compile_anew = jinja2.Environment.compile

    def compiled(self: jinja2.Environment, source: Any, *arguments: Any, **named: Any) -> Any:
        if not isinstance(source, str) or arguments or named:
            return compile_anew(self, source, *arguments, **named)
        context = _TemplateCompileContext.current(optional=True)
        settings = [type(self).__qualname__, *sorted(self.extensions), *(getattr(self, name) for name in SETTINGS)]
        decides = repr((source, settings, bool(context and context.escape_backslashes)))
        kept = folder / hashlib.sha256(decides.encode()).hexdigest()
        if kept.exists():
            return marshal.loads(kept.read_bytes())  # noqa: S302 - these tests wrote it
        code: CodeType = compile_anew(self, source)
        new = kept.with_name(f"{kept.name}.{os.getpid()}")
        new.write_bytes(marshal.dumps(code))
        new.replace(kept)
        return code

    jinja2.Environment.compile = compiled  # type: ignore[method-assign]


class CallbackModule(CallbackBase):  # type: ignore[misc]
    """Spares the forks that."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "lean_forks"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        constants.DEFAULT_INTERNAL_POLL_INTERVAL = ASK_EVERY_S
        # Each lookup of a template copies every variable to the bottom, and then changes the top alone.
        template.deepcopy = copy.copy
        templates = Path(os.environ["BUILT_MODULES"]).with_name("compiled_templates")
        templates.mkdir(exist_ok=True)
        keep_compiled(templates)

    def v2_playbook_on_play_start(self, play: Any) -> None:  # noqa: ARG002 - ansible's
        # A collection in a fork writes to every page that it shares with the run, which is over in two minutes.
        gc.collect()
        gc.freeze()
        gc.disable()
