"""What containers reserve and are limited to: quantities that a cluster takes, and no contradiction."""

import pytest

from harness.errors import CampaignFileError
from harness.spec.load import parse_campaign
from tests.unit.spec.short_file import GOOD

ON_CLUSTER = GOOD + "backend: kubernetes\nkubernetes:\n  "
SERVED = (
    "name: a\nbackend: kubernetes\nkubernetes: {}\nreplicas: [1]\nsharing: [time-slicing]\nworkloads:\n"
    "  - name: own\n    server: {image: 'x/y:1', args: ['{port}'], VALUE}\n"
)


def spec_of(text):
    return parse_campaign(text, origin="c.yaml")


@pytest.mark.parametrize(
    "given",
    [
        "reserve: {cpu: 500m, memory: 2Gi}\n  limit: {cpu: '0.5', memory: 2Gi, ephemeral-storage: 10G}",
        "reserve: {cpu: 1m, memory: 1Mi}\n  limit: {cpu: '1024', memory: 64Ti}",
        "limit: {memory: 4Gi}",
        "client_reserve: {cpu: '1.5'}\n  client_limit: {cpu: '2'}",
    ],
)
def test_quantities_of_kubernetes_are_taken_as_they_are(given):
    found = spec_of(ON_CLUSTER + given + "\n").kubernetes
    for line in given.splitlines():
        name = line.strip().partition(":")[0]
        assert all(value in line for value in getattr(found, name).values())
        assert getattr(found, name)


@pytest.mark.parametrize("field", ["reserve", "limit", "client_reserve", "client_limit"])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{cpu: '0'}", "cpu is 0: it lies between 1m and 1024"),
        ("{cpu: 0m}", "cpu is 0m: it lies"),
        ("{cpu: '1000000000'}", "cpu is 1000000000: it lies"),
        ("{cpu: 500u}", "must match the pattern"),
        ("{cpu: '0.0005'}", "in thousandths of a processor at the finest"),
        ("{cpu: 2Gi}", "cpu is 2Gi: it lies"),
        ("{cpu: '-1'}", "must match the pattern"),
        ('{cpu: "1\\n"}', "must match the pattern"),
        (f"{{cpu: '{'9' * 200}'}}", "must match the pattern"),
        ("{memory: 100m}", "memory is 100m: it lies between 1Mi and 64Ti, in whole bytes"),
        ("{memory: '2'}", "memory is 2: it lies"),
        ("{memory: 1000000.0005k}", "in whole bytes"),
        ("{memory: 65Ti}", "memory is 65Ti: it lies"),
        ("{ephemeral-storage: '0'}", "ephemeral-storage is 0: it lies"),
        ("{nvidia.com/gpu: '1'}", "nvidia.com/gpu"),
        ("{cpu: 4}", "text"),
        ("{cpu: null}", "text"),
    ],
)
def test_what_no_container_can_ask_for_is_refused(field, value, said):
    with pytest.raises(CampaignFileError) as refused:
        spec_of(ON_CLUSTER + f"{field}: {value}\n")
    assert said in str(refused.value)


@pytest.mark.parametrize("value", ["reserve: {cpu: '0'}", "limit: {memory: 100m}"])
def test_those_of_a_servers_container_have_the_same_bounds(value):
    with pytest.raises(CampaignFileError, match="it lies between"):
        spec_of(SERVED.replace("VALUE", value))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ON_CLUSTER + "reserve: {cpu: '2'}\n  limit: {cpu: 1500m}\n", "`reserve` asks for 2 of cpu, and `limit`"),
        (
            ON_CLUSTER + "client_reserve: {memory: 2Gi}\n  client_limit: {memory: 2G}\n",
            "`client_reserve` asks for 2Gi of memory, and `client_limit` allows 2G",
        ),
        (
            SERVED.replace("VALUE", "reserve: {memory: 2Gi}, limit: {cpu: '1', memory: 1Gi}"),
            "`reserve` asks for 2Gi of memory, and `limit` allows 1Gi",
        ),
    ],
)
def test_a_limit_below_what_is_reserved_is_refused(text, said):
    with pytest.raises(CampaignFileError) as refused:
        spec_of(text)
    assert said in str(refused.value)


def test_a_limit_of_a_server_belongs_to_its_container():
    with pytest.raises(CampaignFileError, match="`limit` is of a container: give its `image`"):
        spec_of(
            SERVED.replace("image: 'x/y:1', args: ['{port}']", "command: [serve, '{port}']").replace(
                "VALUE", "limit: {cpu: '1'}"
            )
        )
