"""How a Prometheus that others run is reached, and what it calls things."""

from __future__ import annotations

from pydantic import Field, model_validator

from harness.spec.model import StrictModel


class PrometheusLabels(StrictModel):
    """What a Prometheus that is not ours calls things."""

    pod: str = Field(default="pod", description="Label with the pod's name.")
    node: str = Field(default="node", description="Label with the node's name.")
    gpu_node: str = Field(
        default="node", description="The same of the GPUs' metrics, e.g. Hostname for the GPU operator's exporter."
    )


class PrometheusAccess(StrictModel):
    """Who asks it, and whose certificate it shows; no secret stands here, for this file is kept with the results."""

    token_file: str | None = Field(
        default=None,
        min_length=1,
        description="File with a bearer token, read anew for every query; null means none. "
        "A file that begins with `Basic ` is sent as it is.",
    )
    token_env: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="Environment variable with the token, in place of a file, e.g. PROMETHEUS_TOKEN; null means none.",
    )
    ca_file: str | None = Field(
        default=None,
        min_length=1,
        description="File of the authorities that may have signed its certificate; null means the system's.",
    )
    secret: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9-]+/[a-z0-9.-]+$",
        description="Secret of the cluster, as namespace/name, with username, password and ca.crt, in place of token and ca_file; "
        "null means that of a node of ours (monitoring/prometheus-access) where prometheus_url is null, and else none.",
    )
    tenant: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9!_.*'()|-]{1,150}$",
        description="Tenant of Mimir, Cortex or Thanos, sent as X-Scope-OrgID; null means none.",
    )

    @model_validator(mode="after")
    def _one_token(self) -> PrometheusAccess:
        if self.secret is not None and (self.token_file or self.token_env or self.ca_file):
            raise ValueError(
                "`secret` gives the login and the authority: leave `token_file`, `token_env` and `ca_file` out."
            )
        if self.token_file is not None and self.token_env is not None:
            raise ValueError("`token_file` and `token_env` both give the token: keep one of them.")
        return self
