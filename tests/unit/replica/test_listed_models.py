"""The models that a server lists are read where it has such a list, and nothing is raised where it has none."""

import pytest

from harness.replica.engine.workload import listed_models
from tests.support.raw_server import CLOSE, RawServer, whole


@pytest.mark.parametrize(
    ("answer", "models"),
    [
        (whole(b'{"object": "list", "data": [{"id": "m", "object": "model"}, {"id": "n"}]}'), ["m", "n"]),
        (whole(b'{"object": "list", "data": []}'), []),
        (whole(b'{"data": [{"name": "m"}]}'), []),
        (whole(b'{"models": []}'), []),
        (whole(b"[1]"), []),
        (whole(b"<html>", status="404 Not Found"), []),
        ([CLOSE], []),
    ],
)
def test_the_list_of_a_server(answer, models):
    with RawServer(answer) as server:
        assert listed_models(f"http://127.0.0.1:{server.port}/v1/models", {}) == models
