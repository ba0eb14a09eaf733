#!/usr/bin/python
"""Files and the units that read them, brought to their state in one call."""

from __future__ import annotations

from ..module_utils.documented import documented
from ..module_utils.node_files import Files
from ..module_utils.node_units import Units

DOCUMENTATION = r"""
{"module": "node_state", "author": ["the project"], "short_description": "Files with their contents, and units that run with them",
 "description": [
  "Each file is replaced in one step, its folder made where needed; a private one never appears in a diff.",
  "A unit is restarted when it started before its files last changed. A handler is lost when a run is killed between the change and the restart; this looks at the machine instead, so the next run finishes what the killed one began.",
  "systemd is reloaded only where it says that it needs to be.",
  "One call for the files and units of a role, where files, links, units and their handlers would be ten."],
 "options": {
  "files": {"type": "list", "elements": "dict", "default": [], "description": "Files, written before a unit is started.", "mutually_exclusive": [["content", "secret", "source", "url"]], "required_one_of": [["content", "secret", "source", "url"]], "required_together": [["url", "sha256"]], "suboptions": {
    "path": {"type": "path", "required": true, "description": "Where."},
    "content": {"type": "str", "description": "What; this or O(files[].source)."},
    "source": {"type": "path", "description": "A file on the machine that is copied."},
    "url": {"type": "str", "description": "Where it is served, in UTF-8. A file that has its O(files[].sha256) is not asked for again; one served with another is not kept."},
    "sha256": {"type": "str", "description": "Its sum."},
    "secret": {"type": "str", "no_log": true, "description": "What as well; no log and no result shows it."},
    "mode": {"type": "str", "default": "0644", "description": "Permissions in octal."},
    "owner": {"type": "str", "default": "", "description": "User who owns it and its folder; empty for the user who runs this."},
    "only_mend": {"type": "bool", "default": false, "description": "Bring it to its content where it is there already; do not make it."},
    "random": {"type": "bool", "default": false, "description": "Make it once: RANDOM_KEY in its content is a key of 32 random bytes in base64, which no log and no result has. A file that is there keeps its content."}
  }},
  "proxy": {"type": "dict", "default": {}, "no_log": true, "description": "http_proxy, https_proxy and no_proxy of the environment; never shown."},
  "links": {"type": "dict", "default": {}, "description": "Symbolic links as path and target; a real file in the way is an error."},
  "absent": {"type": "list", "elements": "path", "default": [], "description": "Files that must not be there; patterns as a shell would read them, ~user too. One that ends with a slash takes folders as well, with all that is in them. What O(files) and O(links) name stays."},
  "emptied": {"type": "list", "elements": "str", "default": [], "description": "Folders that go as well where nothing is left in them."},
  "units": {"type": "list", "elements": "dict", "default": [], "description": "The units, in their order; those that are to be off before files are written or removed, the others afterwards.", "suboptions": {
    "name": {"type": "str", "required": true, "description": "The unit."},
    "state": {"type": "str", "choices": ["running", "current", "enabled", "masked", "off"], "default": "running", "description": ["V(running) is enabled, active, and started after its files last changed.", "V(current) is the same for a unit that runs already, and leaves one that does not run alone.", "V(enabled) starts at the next boot. V(masked) never starts. V(off) is stopped and disabled."]},
    "paths": {"type": "list", "elements": "str", "default": [], "description": "Files and folders it reads at its start; a folder counts with everything directly in it."},
    "optional": {"type": "bool", "default": false, "description": "Ignore a unit that does not exist."}
  }},
  "settle_s": {"type": "float", "default": 2.0, "description": "Seconds that services have to stay up after a start, waited once, unless each of them has told systemd that it is up."},
  "journal_lines": {"type": "int", "default": 30, "description": "Lines of its journal shown when it does not come up."}}}
"""


def main() -> None:
    """Runs the module."""
    module = documented(DOCUMENTATION)
    files = Files(module)
    units = Units(module, files.written)
    ended = [unit for unit in module.params["units"] if unit["state"] == "off"]
    for unit in ended:
        units.apply(unit)
    files.apply(module.params)
    for unit in module.params["units"]:
        if unit not in ended:
            units.apply(unit)
    units.settle()
    module.exit_json(
        changed=bool(files.written or files.removed or units.actions),
        written=files.written,
        removed=files.removed,
        actions=units.actions,
        diff=files.diff,
    )


if __name__ == "__main__":
    main()
