"""Why a unit failed is found in its journal, whatever else it repeats there."""

import tree

journal = tree.shared("journal")


def kubelet(level: str, second: int, words: str) -> str:
    return f"{level}1122 10:00:{second % 60:02d}.{second:06d}    {second} kubelet.go:2473] {words}"


def test_a_line_that_is_repeated_does_not_hide_the_cause():
    cause = kubelet("E", 1, 'Failed to start ContainerManager err="system validation failed"')
    repeated = [kubelet("I", second, f"Waiting, attempt {second}") for second in range(2, 3000)]
    found = journal.excerpt("\n".join(["systemd: Started kubelet.", cause, *repeated, "end of the kubelet"]), 40)
    assert found.splitlines()[1:] == [cause, f"{repeated[-1]}  (2998 times)", "end of the kubelet"]


def test_it_is_no_longer_than_asked_for_and_begins_with_the_first_errors():
    lines = [kubelet("I", 5, "word" * (number + 1)) for number in range(100)]
    lines[3], lines[7] = kubelet("E", 3, "no runtime"), "crio: fatal: no conmon"
    found = journal.excerpt("\n".join(lines), 8).splitlines()
    assert found == [lines[3], lines[7], *lines[-6:]]


def test_an_empty_journal_says_nothing():
    assert journal.excerpt("\n", 40) == ""


def test_a_line_of_a_whole_configuration_does_not_hide_the_cause():
    # CRI-O writes its configuration in one line of 7,000 characters at every start
    configuration = f'level=info msg="Current CRI-O configuration: {"x" * 7000}" the end'
    found = journal.excerpt(f"{configuration}\nlevel=fatal msg=no such file", 40).splitlines()
    assert found[1] == "level=fatal msg=no such file"
    assert len(found[0]) < 600
    assert found[0].startswith('level=info msg="Current CRI-O configuration')
    assert found[0].endswith("the end")
