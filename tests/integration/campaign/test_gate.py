"""Limits in a campaign file decide the exit code, of a built-in model as of a server: the recipe for a pipeline, run."""

import json
import re
from pathlib import Path

from tests.support import forked

(RECIPE,) = [
    block
    for block in re.findall(
        r"```yaml\n(.*?)```", (Path(__file__).parents[3] / "docs/recipes.md").read_text(), re.DOTALL
    )
    if block.startswith("name: limits")
]


def test_an_absolute_p99_of_a_built_in_model_gates_a_pipeline(tmp_path):
    file = tmp_path / "limits.yaml"
    file.write_text(RECIPE.replace("latency_p99_ms: 500", "latency_p99_ms: 0.001").replace("[1, 2]", "[1]"))
    done = forked.harness("run", file, "--results", tmp_path, "--no-report", "--fail-on", "slo", "--json")

    (judged,) = json.loads(done.stdout)["slo"].values()
    assert (judged["outcome"], done.returncode) == ("fail", 11), done.stderr
