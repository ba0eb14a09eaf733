"""Exact versions: resolved first, held, mended when broken, refused when they do not exist."""

import pytest
import tree
from fake_module import Failed, FakeModule

module = tree.module("deb_pinned")

MADISON = """\
   kubelet | 1.35.10-1.1 | http://mirror/kubernetes  Packages
   kubelet | 1.35.8-2.1 | http://mirror/kubernetes  Packages
   kubelet | 1.35.8-1.1 | http://mirror/kubernetes  Packages
   kubelet | 1.35.8-1.1 | http://other/kubernetes  Packages
   kubelet | 1.35.8-1.1 | http://mirror/kubernetes  Sources
"""


def kubelet(version="1.35.8", files=()):
    return {"name": "kubelet", "version": version, "files": list(files)}


def packages(installed="", *, offered=MADISON, wanted=None, want="install", **params):
    """A machine that has kubelet at a version, or not at all."""

    def answer(words):
        if words[0] == "dpkg-query":
            return (0, f"kubelet\t{want}\tinstalled\t{installed}\n", "") if installed else (1, "", "no packages found")
        return (0, offered, "") if words[:2] == ["apt-cache", "madison"] else None

    defaults = {
        "source": None,
        "also": [],
        "upgrade": False,
        "lock_timeout_s": 0,
    }
    fake = FakeModule(answer, packages=[wanted or kubelet()], **{**defaults, **params})
    return module.Packages(fake), fake


def commands(fake, program):
    return [command for command in fake.commands if command[0] == program]


@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("1.35.8-1.1", "1.35.8", True),
        ("1.35.8-1.1", "1.35.8-1.1", True),
        ("1.35.10-1.1", "1.35.1", False),
        ("1.35.8-2.1", "1.35.8-1.1", False),
        ("anything", "", True),
    ],
)
def test_a_version_is_upstream_s_or_exact(version, wanted, fits):
    assert module.matches(version, wanted) is fits


def test_the_newest_revision_of_the_version_is_installed_and_held():
    found, fake = packages()
    assert found.present() is True
    assert found.installed == ["kubelet=1.35.8-2.1"]
    assert commands(fake, "apt-get")[-1][-1] == "kubelet=1.35.8-2.1"
    assert commands(fake, "apt-mark") == [["apt-mark", "hold", "kubelet"]]


def test_what_apt_cannot_install_is_tried_again_with_fresh_indexes():
    found, fake = packages()
    verbs, refused = [], [(100, "", "kubelet : Depends: iptables but it is not installable")]
    answer = fake._answer

    def apt(words):
        if words[0] != "apt-get":
            return answer(words)
        verbs.append(next(word for word in words if word in {"install", "update"}))
        return refused.pop() if verbs[-1] == "install" and refused else None

    fake._answer = apt
    assert found.present() is True
    assert verbs == ["install", "update", "install"]


def test_who_holds_a_lock_is_not_waited_for_again():
    found, fake = packages()
    answer = fake._answer
    fake._answer = lambda words: (
        (100, "", "Could not get lock: held by process 7 (apt)") if words[0] == "apt-get" else answer(words)
    )
    with pytest.raises(Failed, match="process 7"):
        found.present()
    assert len(commands(fake, "apt-get")) == 1


def test_an_installed_and_held_revision_of_the_version_is_left_alone():
    found, fake = packages("1.35.8-1.1", want="hold")
    assert found.present() is False
    assert commands(fake, "apt-get") == []


def test_a_version_that_does_not_exist_is_named_with_those_that_do():
    found, fake = packages(wanted=kubelet("1.35.99"))
    with pytest.raises(
        Failed, match=r"kubelet 1\.35\.99 does not exist.*1\.35\.10-1\.1, 1\.35\.8-2\.1.*nothing was installed"
    ):
        found.present()
    assert "install" not in [word for command in commands(fake, "apt-get") for word in command]


def test_what_the_index_lacks_is_asked_for_with_a_fresh_key_and_then_a_fresh_index(monkeypatch):
    found, fake = packages(wanted=kubelet("1.35.99"))
    found.source = {"name": "kubernetes"}
    monkeypatch.setattr(found, "add_source", lambda: False)
    monkeypatch.setattr(found, "renew_source", lambda: fake.commands.append(["renew"]))
    with pytest.raises(Failed, match="does not exist"):
        found.present()
    done = [
        command[0] if command[0] == "renew" else "update"
        for command in fake.commands
        if {"renew", "update"} & set(command)
    ]
    assert done == ["renew", "update"]


def test_a_package_of_another_architecture_alone_does_not_exist_here():
    found, _ = packages(offered="kubelet:i386 | 1.35.8-1.1 | http://mirror/kubernetes  Packages\n")
    with pytest.raises(Failed, match=r"kubelet 1\.35\.8 does not exist.*no repository offers this package"):
        found.present()


def test_an_index_that_cannot_be_fetched_is_the_reason_in_every_run(tmp_path, monkeypatch):
    # An update of every source ends with a warning and 0 then: only its own tells.
    for name in ("SOURCES", "KEYRINGS"):
        monkeypatch.setattr(module, name, tmp_path)
    monkeypatch.setattr(module.Packages, "key", lambda _: b"\x99key")
    options = {"name": "k", "uri": "http://mirror/k", "key": "Release.key", "fingerprint": ""}
    for _ in range(2):
        found, fake = packages(offered="", source=options)
        answer = fake._answer
        fake._answer = lambda words, answer=answer: (
            (100, "", "E: Failed to fetch http://mirror/k") if "APT::Update::Error-Mode=any" in words else answer(words)
        )
        with pytest.raises(Failed, match="could not fetch what it needs"):
            found.present()


def test_another_installed_version_is_changed_by_an_upgrade_only():
    found, _ = packages("1.34.11-1.1", want="hold")
    with pytest.raises(Failed, match=r"installed at 1\.34\.11-1\.1.*playbooks/upgrade\.yml"):
        found.present()
    found, fake = packages("1.34.11-1.1", want="hold", upgrade=True)
    assert found.present() is True
    assert "--allow-change-held-packages" in commands(fake, "apt-get")[-1]


def test_a_package_without_its_binary_is_reinstalled_and_judged_again(tmp_path):
    found, fake = packages("1.35.8-1.1", want="hold", wanted=kubelet(files=[str(tmp_path / "kubelet")]))
    with pytest.raises(Failed, match="still lacks"):
        found.present()
    assert "--reinstall" in commands(fake, "apt-get")[-1]


def test_check_mode_says_what_it_would_install_and_runs_nothing_that_changes():
    found, fake = packages(offered="")
    fake.check_mode = True
    assert found.present() is True
    assert found.installed == ["kubelet=1.35.8"]
    assert not commands(fake, "apt-get")
    assert not commands(fake, "apt-mark")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 812 (unattended-upgr)",
            r"process 812 \(unattended-upgr\) held",
        ),
        ("E: You don't have enough free space in /var/cache/apt/archives/.", "ran out of disk space"),
        ("E: Failed to fetch http://mirror/x.deb  403  Forbidden", "could not fetch"),
        ("E: Sub-process /usr/bin/dpkg returned an error code (1)", "failed. Fix what it names"),
    ],
)
def test_what_apt_says_becomes_a_next_step(words, says):
    found, fake = packages()
    fake._answer = lambda _words: (100, "", words)
    with pytest.raises(Failed, match=says):
        found.demand("install", "x")


def test_a_lock_is_waited_for(monkeypatch):
    monkeypatch.setattr(module, "POLL_S", 0.0)
    answers = iter(
        [(100, "", "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)"), (0, "", "")]
    )
    found, fake = packages(lock_timeout_s=60)
    fake._answer = lambda _words: next(answers)
    found.demand("update")
    assert len(fake.commands) == 2
