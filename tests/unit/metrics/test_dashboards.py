"""The dashboards as files: what the code comes to, and nothing that Grafana would refuse or show wrongly."""

import itertools
import json
import re

import pytest
import yaml

from harness.analysis.campaign import load_state
from harness.metrics.catalogue import STANDARD
from scripts.dashboards import DASHBOARDS, DEFAULT_FOLDER, rendered
from scripts.dashboards.gpu import GPU_PERFORMANCE
from scripts.dashboards.model import COLUMNS, DATASOURCE, KINDS, Dashboard, Panel, Query
from scripts.dashboards.queries import per_device, per_node, per_pod, per_workload
from tests.support.cases import every

TITLES = {"System Resources", "GPU Performance", "Container Metrics", "System Pressure", "Inference Performance"}
UNITS = {
    "short",
    "percent",
    "bytes",
    "Bps",
    "pps",
    "s",
    "reqps",
    "celsius",
    "watt",
    "hertz",
    "bool_yes_no",
    "dtdurations",
}
DOCUMENTS = [json.loads(rendered(dashboard)) for dashboard in DASHBOARDS]
PANELS = [(document, panel) for document in DOCUMENTS for panel in document["panels"] if panel["type"] != "row"]
of_every_panel = every(PANELS, lambda document, panel: f"{document['uid']}: {panel['title']}")


def test_the_five_are_there_and_the_files_are_what_the_code_says():
    assert {dashboard.title for dashboard in DASHBOARDS} == TITLES
    assert {path.name: path.read_text() for path in DEFAULT_FOLDER.glob("*.json")} == {
        f"{dashboard.uid}.json": rendered(dashboard) for dashboard in DASHBOARDS
    }, "run: python -m scripts.dashboards"


@every(DOCUMENTS, lambda document: document["uid"])
def test_identities_are_unique_and_places_do_not_overlap_and_stay_on_the_page(document):
    taken = {}
    ids = [panel["id"] for panel in document["panels"]]
    names = [variable["name"] for variable in document["templating"]["list"]]
    assert (len(set(ids)), len(set(names))) == (len(ids), len(names))
    assert len({other["uid"] for other in DOCUMENTS}) == len(DOCUMENTS)
    assert document["editable"] is False
    for panel in document["panels"]:
        place = panel["gridPos"]
        assert place["w"] > 0
        assert place["h"] > 0
        assert 0 <= place["x"] <= COLUMNS - place["w"]
        for cell in itertools.product(
            range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        ):
            assert taken.setdefault(cell, panel["title"]) == panel["title"]


@of_every_panel
def test_a_panel_has_all_that_it_needs_and_nothing_unknown(document, panel):
    assert panel["type"] in KINDS
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["datasource"] == DATASOURCE
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    references = [target["refId"] for target in panel["targets"]]
    assert references == sorted(set(references)) != []
    for target in panel["targets"]:
        assert target["datasource"] == DATASOURCE == {"type": "prometheus", "uid": "${datasource}"}
        assert target["instant"] != target["range"]
        assert target["format"] == ("table" if panel["type"] == "table" else "time_series")
    known = {variable["name"] for variable in document["templating"]["list"]}
    text = " ".join([panel["title"], *(target["expr"] for target in panel["targets"])])
    assert set(re.findall(r"\$(?!__)(\w+)", text)) <= known
    assert panel.get("repeat", next(iter(known))) in known
    units = [
        one["value"] for each in panel["fieldConfig"]["overrides"] for one in each["properties"] if one["id"] == "unit"
    ]
    assert set(units) <= UNITS


@of_every_panel
def test_every_name_in_a_legend_is_a_label_that_the_query_keeps(document, panel):
    del document
    for target in panel["targets"]:
        wanted = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        kept = [set(re.split(r",\s*", labels)) for labels in re.findall(r"by \(([^)]*)\)", target["expr"])]
        aggregated = bool(kept) or re.match(r"(sum|max|avg|count)\(", target["expr"])
        assert not aggregated or wanted <= set().union(*kept), target


@of_every_panel
def test_no_window_is_fixed_no_device_is_summed_and_no_recording_rule_needed(document, panel):
    del document
    for target in panel["targets"]:
        assert set(re.findall(r"\[([^\]]+)\]", target["expr"])) <= {"$__rate_interval"}
        assert not re.search(r"sum[^(]*\([^()]*\)?[^()]*\(?DCGM_FI_DEV", target["expr"]), target["expr"]
        assert ":" not in re.sub(r'"[^"]*"', "", target["expr"])


# The rules of Grafana's dashboard-linter; panel-units, target-rate-interval and target-promql are held elsewhere.
@every(DOCUMENTS, lambda document: document["uid"])
def test_the_linters_rules_for_a_dashboard_hold(document):
    chosen, *asked_for = document["templating"]["list"]
    assert (chosen["type"], chosen["name"], chosen["label"]) == ("datasource", "datasource", "Data source")
    assert {variable["type"] for variable in asked_for} == {"query"}
    assert {variable["refresh"] for variable in asked_for} == {2}
    (experiments,) = document["annotations"]["list"]
    sources = [
        one["datasource"]["uid"] for one in [*asked_for, experiments, *document["panels"]] if "datasource" in one
    ]
    assert set(sources) == {"${datasource}"}


def test_what_the_linter_is_told_to_leave_out_is_what_would_fail():
    exclusions = yaml.safe_load((DEFAULT_FOLDER / ".lint").read_text())["exclusions"]
    bare = re.compile(r"(?<!rate\()\b\w+_total\{")
    counters = [panel["title"] for _, panel in PANELS if any(bare.search(one["expr"]) for one in panel["targets"])]

    assert all(exclusion["reason"] for exclusion in exclusions.values())
    assert [entry["panel"] for entry in exclusions.pop("target-counter-agg-rule")["entries"]] == counters
    assert set(exclusions) == {
        f"{part}-{label}-rule" for part in ("template", "target") for label in ("job", "instance")
    }


def asked(*builders):
    return {build(name).expr for build in builders for name in STANDARD if STANDARD[name].promql}


def test_every_metric_of_every_experiment_is_shown_with_its_own_query():
    exprs = {target["expr"] for _, panel in PANELS for target in panel["targets"]}
    ways = asked(per_pod, per_device, per_node, per_workload)
    assert exprs & ways
    for name, metric in STANDARD.items():
        if metric.promql:
            assert exprs & {per_pod(name).expr, per_workload(name).expr}, f"no panel asks for {name}"


@pytest.mark.parametrize("percent", [0, 9.9, 10, 42, 69.9, 70, 89, 90, 90.1, 100, 101])
def test_the_states_are_those_of_the_analysis(percent):
    (panel,) = [panel for _, panel in PANELS if panel["title"] == "Load state"]
    for mapping in panel["fieldConfig"]["defaults"]["mappings"]:
        option = mapping["options"]
        low, high = option["from"], option["to"]
        if (low is None or percent >= low) and (high is None or percent <= high):
            assert option["result"]["text"] == load_state(percent)
            return
    raise AssertionError("no state")


def test_panels_flow_and_repeated_ones_have_their_own_line():
    query = Query("up")
    panels = [
        Panel("a", [query], width=12),
        Panel("b", [query], width=12),
        Panel("c", [query], width=6, repeat="x"),
        Panel("d", [query]),
    ]
    document = json.loads(rendered(Dashboard("u", "t", "", [], {"row": panels})))
    places = {panel["title"]: (panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in document["panels"]}
    assert places == {"row": (0, 0), "a": (0, 1), "b": (12, 1), "c": (0, 9), "d": (0, 17)}


def test_a_panel_of_no_kind_is_refused():
    with pytest.raises(ValueError, match="no panel is called pie"):
        rendered(Dashboard("u", "t", "", [], {"row": [Panel("a", [Query("up")], "pie")]}))


def test_a_gpu_is_found_by_a_field_that_one_divided_by_mig_has_too():
    asked = [one.metric for one in GPU_PERFORMANCE.variables]
    assert asked
    assert not [one for one in asked if "_UTIL" in one]
