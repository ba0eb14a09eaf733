"""What a pod packs as a point comes to lie in the profile, and nothing else."""

import io
import tarfile

import pytest

from harness.campaign.profile_job import unpack_point
from harness.errors import BackendError


def packed(archive, **member):
    entry = tarfile.TarInfo(member.pop("name"))
    data = b"seven"
    entry.size = 0 if member else len(data)
    for name, value in member.items():
        setattr(entry, name, value)
    with tarfile.open(archive, "w") as tar:
        tar.addfile(entry, io.BytesIO(data))


def test_a_folder_comes_out_as_it_was_packed(tmp_path):
    point = tmp_path / "point"
    (point / "deeper").mkdir(parents=True)
    (point / "figures.json").write_text("{}")
    (point / "deeper" / "times.csv").write_text("1")
    with tarfile.open(tmp_path / "b4.tar", "w") as tar:
        tar.add(point, arcname="")

    unpack_point(tmp_path / "b4.tar", tmp_path / "out")

    found = {path.relative_to(tmp_path / "out").as_posix(): path.is_dir() for path in (tmp_path / "out").rglob("*")}
    assert found == {"figures.json": False, "deeper": True, "deeper/times.csv": False}
    assert (tmp_path / "out/deeper/times.csv").read_text() == "1"


@pytest.mark.parametrize(
    "member",
    [
        {"name": "../figures.json"},
        {"name": "/figures.json"},
        {"name": "a/../../figures.json"},
        {"name": "figures.json", "type": tarfile.SYMTYPE, "linkname": "/etc/passwd"},
        {"name": "figures.json", "type": tarfile.LNKTYPE, "linkname": "../other"},
        {"name": "figures.json", "type": tarfile.FIFOTYPE},
        {"name": "figures.json", "type": tarfile.CHRTYPE},
    ],
    ids=lambda member: f"{member['name']} {member.get('type', b'').decode()}",
)
def test_what_is_no_file_below_it_is_refused(tmp_path, member):
    (tmp_path / "half").mkdir()
    packed(tmp_path / "half/b4.tar", **member)

    with pytest.raises(BackendError, match="no file of a profile"):
        unpack_point(tmp_path / "half/b4.tar", tmp_path / "half/out")

    assert sorted(path.name for path in tmp_path.rglob("*")) == ["b4.tar", "half", "out"]
