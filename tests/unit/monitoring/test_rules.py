"""The rules and the configuration, checked and tried by Prometheus' own promtool."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.monitoring import prometheus_files

HERE = Path(__file__).parent
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool in PATH (Debian's package prometheus)")
FILES = prometheus_files()
ALERTS = [rule for group in yaml.safe_load(FILES["alerts.yml"])["groups"] for rule in group["rules"]]
RECORDED = [rule for group in yaml.safe_load(FILES["recording.yml"])["groups"] for rule in group["rules"]]
TESTS = yaml.safe_load((HERE / "rule_tests.yml").read_text())["tests"]


def promtool(folder, *words):
    for name in ("recording.yml", "alerts.yml"):
        (folder / name).write_text(FILES[name])
    shutil.copy(HERE / "rule_tests.yml", folder)
    done = subprocess.run([str(PROMTOOL), *words], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


@needs_promtool
def test_promtool_finds_nothing_to_say_about_the_rules(tmp_path):
    status, said = promtool(tmp_path, "check", "rules", "--lint-fatal", "recording.yml", "alerts.yml")
    assert status == 0, said


@needs_promtool
def test_promtool_asks_as_the_server_scrapes_itself(tmp_path):
    """In the probes of the pod; a client's settings are the same in a scrape."""
    settings = yaml.safe_load(FILES["promtool.yml"])
    (tmp_path / "client.yml").write_text(yaml.safe_dump({"scrape_configs": [{"job_name": "itself", **settings}]}))
    status, said = promtool(tmp_path, "check", "config", "--syntax-only", "client.yml")
    assert status == 0, said
    [itself] = [
        job for job in yaml.safe_load(FILES["prometheus.yml"])["scrape_configs"] if job["job_name"] == "prometheus"
    ]
    assert settings == {name: itself[name] for name in settings}


@needs_promtool
def test_the_rules_do_what_they_are_for(tmp_path):
    status, said = promtool(tmp_path, "test", "rules", "rule_tests.yml")
    assert status == 0, said


def test_every_alert_is_tried_and_says_what_to_do():
    tried = {one["alertname"] for test in TESTS for one in test["alert_rule_test"] if one["exp_alerts"]}
    assert {rule["alert"] for rule in ALERTS} == tried
    for rule in ALERTS:
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        assert set(rule["annotations"]) == {"summary", "action"}


def test_every_recorded_series_is_tried_or_alerted_on():
    used = "".join(rule["expr"] for rule in ALERTS) + (HERE / "rule_tests.yml").read_text()
    assert [rule["record"] for rule in RECORDED if rule["record"] not in used] == []


def test_the_mission_s_alerts_are_there():
    wanted = {"GpuUtilizationHigh": "> 90", "GpuTemperatureHigh": "> 80"}
    assert {rule["alert"]: rule["expr"][-4:] for rule in ALERTS if rule["alert"] in wanted} == wanted


@pytest.mark.parametrize("interval_s", [1, 5, 15])
def test_every_window_holds_four_scrapes(interval_s):
    files = prometheus_files(prometheus_scrape_interval_s=interval_s)
    assert set(re.findall(r"\[(\w+)\]", files["recording.yml"])) == {f"{4 * interval_s}s"}


def test_scrapes_are_as_the_campaigns_count_on():
    config = yaml.safe_load(FILES["prometheus.yml"])
    assert config["global"] == {"scrape_interval": "5s", "scrape_timeout": "4s", "evaluation_interval": "5s"}
    assert not [job for job in config["scrape_configs"] if "scrape_interval" in job]
    names = [job["job_name"] for job in config["scrape_configs"]]
    assert names[:4] + names[5:] == [
        *("prometheus", "node-exporter", "dcgm-exporter", "kube-state-metrics"),
        *("kubelet", "kubelet-cadvisor", "ai-inference-apps"),
    ]


def test_the_kubelets_certificates_can_be_demanded():
    config = yaml.safe_load(prometheus_files(prometheus_kubelet_insecure_tls=False)["prometheus.yml"])
    jobs = {job["job_name"]: job.get("tls_config") for job in config["scrape_configs"]}
    assert set(jobs["kubelet"]) == set(jobs["kubelet-cadvisor"]) == {"ca_file"}
