"""fstab: swap off, repeated entries gone, everything else untouched."""

import tree
from hypothesis import given
from hypothesis import strategies as st

module = tree.module("fstab_without_swap")

DIRTY = """\
# /etc/fstab: static file system information.
LABEL=root / ext4 errors=remount-ro 0 1
LABEL=swap none swap sw 0 0
/swapfile\tnone\tswap\tsw\t0\t0
/swapfile none swap sw 0 0
LABEL=root  /  ext4  errors=remount-ro  0  1

#/old none swap sw 0 0
tmpfs  /srv/scratch  tmpfs  size=16m,nodev   0 0   # not swap, though swap is mentioned
"""
CLEAN = """\
# /etc/fstab: static file system information.
LABEL=root / ext4 errors=remount-ro 0 1
# swap is off on a Kubernetes node: LABEL=swap none swap sw 0 0
# swap is off on a Kubernetes node: /swapfile\tnone\tswap\tsw\t0\t0

#/old none swap sw 0 0
tmpfs  /srv/scratch  tmpfs  size=16m,nodev   0 0   # not swap, though swap is mentioned
"""
FIELDS = st.text("/abcLABEL=#0", min_size=1, max_size=6)
ENTRIES = st.tuples(FIELDS, FIELDS, st.sampled_from(["ext4", "swap", "tmpfs"]), FIELDS).map(" ".join)
LINES = st.one_of(ENTRIES, st.sampled_from(["", "# a comment", "  ", "\t# indented", "two fields"]))
FILES = st.lists(LINES, max_size=12).map("\n".join)


def test_a_dirty_file_comes_out_clean():
    after, disabled, duplicates = module.without_swap(DIRTY)
    assert after == CLEAN
    assert len(disabled) == 2
    assert len(duplicates) == 2


def test_an_entry_put_back_beside_the_one_turned_off_goes():
    after, _, duplicates = module.without_swap(CLEAN + "/swapfile none swap sw 0 0\n")
    assert after == CLEAN
    assert duplicates == ["/swapfile none swap sw 0 0"]


@given(FILES)
def test_a_second_pass_changes_nothing(text):
    once, _, _ = module.without_swap(text)
    assert module.without_swap(once) == (once, [], [])


@given(FILES)
def test_no_swap_is_left_and_every_other_line_is_kept_in_order(text):
    after, _, _ = module.without_swap(text)
    entries = [module.entry(line) for line in after.splitlines()]
    assert not [fields for fields in entries if fields and fields[2] == "swap"]
    kept = [line for line in after.splitlines() if not line.startswith(module.MARK)]
    others = [line for line in text.splitlines() if (module.entry(line) or ("", "", ""))[2] != "swap"]
    seen: set[tuple[str, ...]] = set()
    expected = []
    for line in others:
        fields = module.entry(line)
        if fields is None or fields not in seen:
            expected.append(line)
        seen |= {fields} if fields else set()
    assert kept == expected
