"""The shortest campaign file, and what is said of one with faults."""

import pytest

from harness.errors import CampaignFileError
from harness.spec import CampaignSpec
from harness.spec.load import parse_campaign
from harness.spec.model import StrictModel

GOOD = """
name: mine
workloads:
  - name: resnet50
replicas: [1, 3]
"""
CONDITIONS = GOOD + "conditions:\n  - name: alone\n"


def faults(text):
    with pytest.raises(CampaignFileError) as caught:
        parse_campaign(text, origin="c.yaml")
    assert caught.value.exit_code == 2
    return str(caught.value)


def models(model=CampaignSpec):
    yield model
    for definition in model.model_json_schema().get("$defs", {}):
        yield (
            next(each for each in StrictModel.__subclasses__() if each.__name__ == definition)
            if definition in {each.__name__ for each in StrictModel.__subclasses__()}
            else model
        )
