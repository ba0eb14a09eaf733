"""A load that several generators send: each its part, and their logs become one without a request lost or twice."""

import itertools

from harness.backends.kubernetes.backend import merge
from harness.traffic.arrivals import arrivals
from harness.traffic.generator import LoadPlan
from harness.traffic.records import GENERATED_FIELDS, RecordLog

PLAN = LoadPlan(targets=[(f"10.0.0.{last}", 9000 + last) for last in range(5)], rate=20, log="all", max_clients=9)


def test_shards_divide_the_servers_and_leave_each_its_rate():
    shards = [PLAN.shard(index, 2, log=f"log-{index}") for index in range(2)]

    assert sorted(itertools.chain.from_iterable(each.targets for each in shards)) == PLAN.targets
    assert [(len(each.targets), each.rate, each.max_clients, each.log) for each in shards] == [
        (3, 20, 4, "log-0"),
        (2, 20, 4, "log-1"),
    ]
    first, second = (list(itertools.islice(arrivals(each.rate, "poisson", each.seed), 9)) for each in shards)
    assert set(first).isdisjoint(second), "arrivals of their own"
    assert LoadPlan.model_validate_json(shards[0].model_dump_json()) == shards[0]


def test_what_shards_sent_is_merged_exactly(tmp_path):
    sent = [[(shard, at, 1, 2, 200) for at in range(shard, 30_000, 3)] for shard in range(3)]
    logs = []
    for shard, records in enumerate(sent):
        logs.append(tmp_path / f"shard-{shard}")
        log = RecordLog(logs[-1], fields=len(GENERATED_FIELDS))
        for record in records:
            log.append(*record)
        log.close()
    with logs[1].open("ab") as torn:
        torn.write(b"half a record")

    merged = merge(logs)

    ordered = sorted(itertools.chain.from_iterable(sent), key=lambda record: record[1])
    assert merged.tolist() == ordered
    assert merge([]).shape == (0,)
