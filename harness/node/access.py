"""Why a host lets nobody work on it: sudo, or ssh, by the words that Ansible hands on; and what to do then."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class Access(StrEnum):
    """What stands in the way, as a code."""

    SUDO_ASKS = "sudo-wants-a-password"
    SUDO_DISBELIEVES = "sudo-password-wrong"
    SUDO_REFUSES = "sudo-refuses"
    LOGIN_REFUSED = "login-refused"
    HOST_KEY = "host-key-changed"
    NO_ADDRESS = "host-unknown"
    CONNECTION_LOST = "connection-lost"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One of them.

    Attributes:
        words: pattern of what Ansible, ssh or sudo says.
        what: a sentence, with {host}.
        advice: what to do next.
    """

    code: Access
    words: re.Pattern[str]
    what: str
    advice: str


def _obstacle(code: Access, words: str, what: str, advice: str) -> Obstacle:
    return Obstacle(code, re.compile(words), what, advice)


# The first that fits: what is said of a login also says that the connection has ended.
OBSTACLES = (
    _obstacle(
        Access.SUDO_ASKS,
        r"Missing \w+ password|sudo: a (terminal|password) is required",
        "sudo on {host} wants a password, and none was given",
        "Run it again with --ask-become-pass, or let the user that logs in become root without one (NOPASSWD in /etc/sudoers.d). "
        "Where it asks although that is set, the user may not run every command as root.",
    ),
    _obstacle(
        Access.SUDO_DISBELIEVES,
        r"Incorrect \w+ password|incorrect password attempt",
        "sudo on {host} did not take the password",
        "Run it again with --ask-become-pass; it is the password of the user that logs in (ansible_user), and one for all hosts of the run.",
    ),
    _obstacle(
        Access.SUDO_REFUSES,
        r"is not in the sudoers file|is not allowed to (execute|run)|may not run sudo|must have a tty to run sudo|sudo: .*(setuid|owned by uid)"
        r"|sudo: (command )?not found|sudo: Permission denied",
        "sudo on {host} does not let this user become root",
        "Give the user that logs in (ansible_user) every command as root, in /etc/sudoers.d, or log in as one that has it; then run it again.",
    ),
    _obstacle(
        Access.LOGIN_REFUSED,
        r"Permission denied \(",
        "ssh to {host} does not let this user in",
        "Check ansible_user and the key (ansible_ssh_private_key_file) until `ssh` works without a question; then run it again.",
    ),
    _obstacle(
        Access.HOST_KEY,
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key verification failed",
        "{host} shows another key than the one that this machine knows, or one that it does not know",
        "Compare it with the host's own (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), then `ssh-keygen -R` its address and `ssh` to it once.",
    ),
    _obstacle(
        Access.NO_ADDRESS,
        r"Could not resolve hostname|Name or service not known",
        "nobody knows the address of {host}",
        "Correct ansible_host in the inventory, or the names of this machine.",
    ),
)
LOST = _obstacle(
    Access.CONNECTION_LOST,
    r"Shared connection to .* closed|Connection (to .* )?(closed|reset|refused|timed out)|Broken pipe|client_loop|kex_exchange|not responding",
    "the connection to {host} was lost",
    "See that the machine is up and `ssh` to it works, then run it again: what was done stays, and what was half done is done again.",
)


def obstacle(error: str, *, had_answered: bool) -> Obstacle | None:
    """What the words of a failure mean; None where it is none of these.

    had_answered: whether the host had done something in this run, so that an end of the connection came in its middle.
    """
    for one in OBSTACLES:
        if one.words.search(error):
            return one
    return LOST if had_answered and LOST.words.search(error) else None
