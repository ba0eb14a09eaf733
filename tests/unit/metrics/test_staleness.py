import numpy as np

from harness.metrics.prometheus.adapter import Series
from harness.metrics.prometheus.series import CountedTotal, ExportGrid, by_labels, has_reset, measured


def series(times_ms, values=None, **labels):
    times = np.array(times_ms, dtype=np.int64)
    return Series(labels, times, np.array(values if values is not None else times * 0.0, dtype=float))


GRID_MS = np.arange(0, 6000, 1000)


def test_a_row_needs_a_sample_in_its_own_step():
    assert measured([series([0, 1, 1999, 4000])], GRID_MS, 1000).tolist() == [True, True, True, False, True, False]
    assert not measured([], GRID_MS, 1000).any()


def test_two_series_of_one_replica_make_one_presence():
    assert measured([series([0, 1000]), series([3000])], GRID_MS, 1000).tolist() == [
        True,
        True,
        False,
        True,
        False,
        False,
    ]


def test_totals_over_a_reset():
    total = CountedTotal(0)
    found = total.advance([series([-1000, 0, 1000, 2000, 3000, 4000], [5, 10, 15, 2, 3, 9])], GRID_MS)
    assert found.tolist() == [0, 5, 7, 8, 14, 14]


def test_totals_go_on_from_chunk_to_chunk_even_over_a_gap():
    whole = CountedTotal(0).advance([series([0, 1000, 4000, 5000], [10, 12, 20, 3])], GRID_MS)
    parts = CountedTotal(0)
    first = parts.advance([series([0, 1000], [10, 12])], GRID_MS[:2])
    nothing = parts.advance([], GRID_MS[2:4])
    last = parts.advance([series([4000, 5000], [20, 3])], GRID_MS[4:])
    assert [*first, *nothing, *last] == whole.tolist() == [0, 2, 2, 2, 10, 13]


def test_before_the_first_sample_there_is_no_total():
    found = CountedTotal(0).advance([series([2000, 3000], [100, 103])], GRID_MS)
    np.testing.assert_equal(found, [np.nan, np.nan, 0, 3, 3, 3])
    assert np.isnan(CountedTotal(0).advance([], GRID_MS)).all()


def test_a_restarted_container_adds_to_its_predecessor():
    found = CountedTotal(0).advance(
        [series([0, 1000], [50, 60], container="x"), series([3000, 4000, 5000], [1, 4, 9], container="y")], GRID_MS
    )
    assert found.tolist() == [0, 10, 10, 10, 13, 18]


def test_resets_are_seen():
    assert has_reset([series([0, 1, 2], [1, 2, 3]), series([0, 1, 2], [1, 3, 2])])
    assert not has_reset([series([0, 1, 2], [1, 1, 3]), series([0], [1])])


def test_series_are_grouped_by_the_replicas_label():
    groups = by_labels([series([0], pod="a"), series([0], pod="b"), series([1], pod="a"), series([0])], ["pod"])
    assert {key: len(group) for key, group in groups.items()} == {("a",): 2, ("b",): 1, ("",): 1}


def test_chunks_cover_the_grid_once():
    grid = ExportGrid(5000, 100, 400, 25)
    chunks = list(grid.chunks(10))
    assert [chunk.rows for chunk in chunks] == [10, 10, 5]
    assert np.concatenate([chunk.times_ms() for chunk in chunks]).tolist() == grid.times_ms().tolist()
    assert grid.end_ms == 5000 + 24 * 100 == chunks[-1].end_ms
