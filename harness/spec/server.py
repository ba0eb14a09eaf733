"""A server of one's own as a workload: how it is started, asked and ended."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, quote, urlsplit

from pydantic import Field, model_validator

from harness.spec.model import (
    KUBERNETES,
    LOCAL,
    FactoryPath,
    Lacking,
    OneOrSeveral,
    Port,
    StrictModel,
    Text,
    UpTo4096,
    UpToTenMinutes,
    UrlPath,
    VariableName,
    WithinADay,
    checked,
)
from harness.spec.pods import ImageReference, Resources, Subdomain, lower_limits
from harness.spec.server_requests import OwnMetricsSpec, RequestsSpec, SuccessSpec, TensorSpec, TraceSpec

PORT_PLACEHOLDER, OF_A_START = "{port}", ("{replica}", "{replicas}")
METRICS_PORT, POD_PORT = 8000, 8080
"""Of a replica's pod: where the client beside a server serves /metrics, and where the server listens unless it is said."""
OIP_READY = "/v2/health/ready"
Rate = Annotated[float, Field(gt=0, le=100_000)]
_URL = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:[0-9]{1,5})?/?", re.ASCII)
_THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "::1"})
_OF_A_COMMAND = ("env", "port", "ready", "stop_timeout_s")
_OF_AN_IMAGE = ("args", "secret_env", "claims", "reserve", "limit")
_SECRET = re.compile(r"(proxy-)?authorization|cookie|key|(.*[-_])?(api[-_]?key|token|secret|password)", re.IGNORECASE)
"""Names of headers, parameters and variables whose values are nobody's business."""
_InSecret = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[-._A-Za-z0-9]{1,253}$")]
_MOST_OF_A_VARIABLE = 100_000
"""Linux takes 131,072 bytes."""


class Protocol(StrEnum):
    """What requests and answers look like."""

    HTTP = "http"
    """One request with a body, one answer."""
    OPENAI_COMPLETIONS = "openai-completions"
    OPENAI_CHAT = "openai-chat"
    OPENAI_RESPONSES = "openai-responses"
    ANTHROPIC = "anthropic"
    """Anthropic's messages."""
    OLLAMA_GENERATE = "ollama-generate"
    OLLAMA_CHAT = "ollama-chat"
    """Ollama's own, a JSON object in each line."""
    TRITON_GENERATE = "triton-generate"
    """Triton's generate extension."""
    OIP = "oip"
    """Open Inference Protocol v2: tensors in, tensors out."""
    OIP_GRPC = "oip-grpc"
    """The same over gRPC."""
    OWN = "own"
    """Whatever a client of the user's own speaks."""


OPEN_INFERENCE = frozenset({Protocol.OIP, Protocol.OIP_GRPC})
LANGUAGE = frozenset(
    {
        Protocol.OPENAI_COMPLETIONS,
        Protocol.OPENAI_CHAT,
        Protocol.OPENAI_RESPONSES,
        Protocol.ANTHROPIC,
        Protocol.OLLAMA_GENERATE,
        Protocol.OLLAMA_CHAT,
        Protocol.TRITON_GENERATE,
    }
)
"""Of language models: a prompt or a chat in, tokens out."""
CHATS = LANGUAGE - {Protocol.OPENAI_COMPLETIONS, Protocol.OLLAMA_GENERATE, Protocol.TRITON_GENERATE}
"""Those that take the messages of a chat."""
_WITH_IMAGE = LANGUAGE - {Protocol.OPENAI_COMPLETIONS, Protocol.TRITON_GENERATE}
_WITH_AUDIO = frozenset({Protocol.OPENAI_CHAT})

_PATHS = {
    Protocol.HTTP: "/",
    Protocol.OPENAI_COMPLETIONS: "/v1/completions",
    Protocol.OPENAI_CHAT: "/v1/chat/completions",
    Protocol.OPENAI_RESPONSES: "/v1/responses",
    Protocol.ANTHROPIC: "/v1/messages",
    Protocol.OLLAMA_GENERATE: "/api/generate",
    Protocol.OLLAMA_CHAT: "/api/chat",
    Protocol.TRITON_GENERATE: "/v2/models/{model}/generate",
    Protocol.OIP: "/v2/models/{model}/infer",
}
_KEY_HEADERS = {Protocol.ANTHROPIC: "X-Api-Key"}
_STREAM_SUFFIX = {Protocol.TRITON_GENERATE: "_stream"}
"""Of the path."""

_OF_PROTOCOLS = {
    **dict.fromkeys(("body", "method", "success"), frozenset({Protocol.HTTP})),
    "extra_body": LANGUAGE,
    "stream": LANGUAGE | {Protocol.OWN},
    "client": frozenset({Protocol.OWN}),
    "tensors": OPEN_INFERENCE,
    "model": frozenset(Protocol) - {Protocol.HTTP},
    "path": frozenset(Protocol) - {Protocol.OWN, Protocol.OIP_GRPC},
}
"""What a field has an effect with."""
_NEEDED = {
    Protocol.OWN: ("client",),
    Protocol.TRITON_GENERATE: ("model",),
    **dict.fromkeys(OPEN_INFERENCE, ("tensors", "model")),
}


class ReadySpec(StrictModel):
    """When the server is up; then a real request must be answered too."""

    path: UrlPath | None = Field(None, description="GET answers 200, e.g. /health.")
    log: Annotated[
        Text | None,
        Lacking(KUBERNETES, "a container sees the port of the one beside it, not its output", "Use `path` or `tcp`."),
    ] = Field(None, description="Its output matches this regular expression.")
    tcp: bool = Field(False, description="Its port accepts connections.")

    @checked
    def _one_of_them(self) -> Iterator[str]:
        if (self.path is not None) + (self.log is not None) + self.tcp != 1:
            yield "give one of `path`, `log` and `tcp: true`."
        if self.log is not None:
            try:
                re.compile(self.log)
            except re.error as error:
                yield f"`log` {self.log!r} is not a regular expression: {error}."


class ServerSpec(StrictModel):
    """A server that the harness starts once per replica, or one per replica that already runs."""

    command: Annotated[
        list[Text],
        Lacking(
            KUBERNETES,
            "a pod runs an image",
            "Name the server's in `server.image`; `command` and `args` are then its container's.",
            when="of_this_machine",
            label="without `image`",
        ),
    ] = Field(
        [],
        description="Program and arguments, in the foreground; {port}, {replica} (from 0) and {replicas} are filled in. With "
        "`image`: its entrypoint.",
    )
    image: Annotated[
        ImageReference | None,
        Lacking(LOCAL, "the harness starts no container on this machine", "Give the server's `command` alone."),
    ] = Field(
        None,
        description="On Kubernetes: the server's image, with its registry; it has the GPU, and the client runs beside it.",
    )
    args: list[str] = Field([], description="With `image`: arguments; {port} is filled in.")
    secret_env: Annotated[
        dict[str, _InSecret],
        Lacking(LOCAL, "Secrets are a cluster's", "Export the variable that `server.api_key_env` names."),
    ] = Field(
        {},
        description="With `image`: variables from Secrets, as secret/key, e.g. {HF_TOKEN: hub/token}. With `url`: only the "
        "key that `api_key_env` names.",
    )
    claims: dict[Annotated[str, Field(pattern=r"^/\S+$")], Subdomain] = Field(
        {},
        description="With `image`: PersistentVolumeClaims to mount, e.g. {/models: models}.",
    )
    reserve: Resources = Field({}, description="With `image`: resource requests, e.g. {cpu: '4', memory: 16Gi}.")
    limit: Resources = Field({}, description="With `image`: resource limits.")
    url: Annotated[
        list[str],
        OneOrSeveral,
        Lacking(
            KUBERNETES,
            "in a pod that address is the pod's own",
            "Give the address by which the cluster reaches it.",
            when="here",
            label="on localhost",
        ),
    ] = Field(
        [],
        description="Instead of `command`: a running server for each replica, e.g. http://localhost:8000.",
    )
    env: dict[str, str] = Field(
        {}, description="Environment variables; {port}, {replica} and {replicas} are filled in."
    )
    port: Port | None = Field(
        None,
        description="Port of replica 0, the others follow; null: any free port. With `image`: of every pod; null: 8080.",
    )
    ready: ReadySpec = Field(
        ReadySpec(tcp=True),
        description="When it is up: {path: /health}, {log: regex} or {tcp: true}; with oip {path: /v2/health/ready}.",
    )
    stop_timeout_s: UpToTenMinutes = Field(10.0, description="Seconds between SIGTERM and SIGKILL.")
    protocol: Protocol = Field(
        Protocol.HTTP,
        description="Format of requests and answers, see docs/servers.md#protocols.",
    )
    client: FactoryPath | None = Field(
        None, description="own: module:factory of your client, see docs/servers.md#a-protocol-of-your-own."
    )
    path: UrlPath | None = Field(None, description="Path of the requests; null: / or the protocol's.")
    model: str | None = Field(None, description="Name of the model in requests.")
    tensors: list[TensorSpec] | None = Field(
        None,
        min_length=1,
        description="oip, oip-grpc: inputs of a request, e.g. [{name: x, shape: [1, 4], datatype: FP32}].",
    )
    stream: bool = Field(True, description="Language models, own: answers arrive token by token.")
    extra_body: dict[str, Any] = Field(
        {},
        description="Language models: merged into the body, e.g. {ignore_eos: true}; null removes a field, {prompt} and "
        "{output_tokens} are filled in: {max_tokens: null, limit: '{output_tokens}'}.",
    )
    method: Literal["GET", "POST"] = Field("POST", description="http: method.")
    body: str | dict[str, Any] | None = Field(
        None,
        description="http: text or JSON object; {prompt}, {output_tokens}, {image}, {audio} (base64), {image_file} and "
        "{audio_file} (bytes) are filled in.",
    )
    success: SuccessSpec = Field(SuccessSpec(), description="http: a good answer, e.g. {status: 200, contains: x}.")
    headers: dict[str, str] = Field({}, description="More headers.")
    api_key_env: Annotated[
        VariableName | None,
        Lacking(
            KUBERNETES,
            "no pod has this machine's variables",
            "Name the Secret that holds it in `server.secret_env`.",
            when="key_of_this_machine",
            label="without `secret_env`",
        ),
    ] = Field(None, description="Environment variable with the key; the key is never stored.")
    api_key_header: str = Field(
        "Authorization",
        pattern=r"^[A-Za-z][A-Za-z0-9-]*$",
        description="Header of the key: `Bearer KEY` in Authorization, the key alone in others, e.g. X-Api-Key (default of "
        "anthropic).",
    )
    requests: RequestsSpec = Field(RequestsSpec(), description="Requests: synthetic, or from a file.")
    metrics: OwnMetricsSpec | None = Field(
        None,
        description="Also record the server's own metrics: {path: /metrics, port: null, step_s: 5}.",
    )
    concurrency: UpTo4096 | None = Field(None, description="Closed loop: resident requests per server; null: 1.")
    rate: Rate | None = Field(None, description="Open loop: requests per second and server.")
    arrivals: Literal["constant", "poisson", "gamma"] | None = Field(None, description="With `rate`; null: poisson.")
    burstiness: float | None = Field(
        None,
        ge=0.01,
        le=1000,
        description="gamma: shape; 1 is Poisson, below it bursts.",
    )
    ramp_to: Rate | None = Field(None, description="With `rate`: final rate of a linear ramp.")
    trace: TraceSpec | None = Field(
        None,
        description="Open loop: arrivals and lengths of a trace, e.g. {file: trace.jsonl, unit: ms, factor: 2, block_tokens: "
        "512}.",
    )
    max_in_flight: UpTo4096 = Field(
        1024, description="With `rate` or `trace`: most resident requests; others wait, which counts as latency."
    )
    request_timeout_s: WithinADay = Field(60.0, description="Time limit of a whole answer.")

    @property
    def of_this_machine(self) -> bool:
        """It is a program of this machine, and of no image."""
        return bool(self.command) and self.image is None

    @property
    def key_of_this_machine(self) -> bool:
        """Its key is a variable of this machine's alone."""
        return self.api_key_env is not None and self.api_key_env not in self.secret_env

    @property
    def here(self) -> bool:
        """One of its addresses is the asking machine's own."""
        return any(urlsplit(url).hostname in _THIS_MACHINE for url in self.url)

    @property
    def elsewhere(self) -> bool:
        """One of its addresses is not this machine's own, so that what is read of this machine says nothing of it."""
        return any(urlsplit(url).hostname not in _THIS_MACHINE for url in self.url)

    @property
    def streams(self) -> bool:
        """Answers come token by token."""
        return self.protocol in _OF_PROTOCOLS["stream"] and self.stream

    @property
    def target(self) -> str:
        """Path of the requests."""
        own = _PATHS.get(self.protocol, "").format(model=quote(self.model or "", safe=""))
        return self.path or own + (_STREAM_SUFFIX.get(self.protocol, "") if self.stream else "")

    def with_files(self, place: Callable[[str], str]) -> ServerSpec:
        """The same with another path for each file that its requests are made of, in the order file, tokenizer, trace."""
        paths = {key: place(path) for key in ("file", "tokenizer") if (path := getattr(self.requests, key))}
        trace = self.trace and self.trace.model_copy(update={"file": place(self.trace.file)})
        return self.model_copy(update={"requests": self.requests.model_copy(update=paths), "trace": trace})

    @property
    def may_have_sessions(self) -> bool:
        """Requests may follow each other."""
        return self.requests.sessions is not None or self.requests.file is not None or self.trace is not None

    @property
    def open_loop(self) -> bool:
        """Requests come at times of their own."""
        return self.rate is not None or self.trace is not None

    def load_in_words(self) -> str:
        """How it is asked, e.g. ``8 requests in flight`` or ``poisson arrivals, 4 requests per second``."""
        if self.trace is not None:
            return f"the trace {self.trace.file}, {self.trace.factor:g} times as fast"
        sessions = self.requests.sessions
        what, turns = ("session", f" of up to {sessions.turns} turns") if sessions else ("request", "")
        if self.rate is None:
            count = self.concurrency or 1
            return f"{count} {what if count == 1 else f'{what}s'} in flight{turns}"
        burstiness = "" if self.burstiness is None else f" of burstiness {self.burstiness:g}"
        kind = self.arrivals or "poisson"
        ramp = "" if self.ramp_to is None else f", in the recording evenly to {self.ramp_to:g}"
        return f"{kind} arrivals{burstiness}, {self.rate:g} {what}s per second{turns}{ramp}"

    @checked
    def _started_or_running(self) -> Iterator[str]:
        """No message shows an address: it may hold a password."""
        if bool(self.command or self.image) is bool(self.url):
            yield "give either `command` or `image`, which is started, or `url` of what runs already."
        if any(urlsplit(url).username is not None for url in self.url):
            yield "`url` holds a name or a password, and the file is kept with the results: use `api_key_env`."
        wrong = next((number for number, url in enumerate(self.url, 1) if not _URL.fullmatch(url)), None)
        if wrong is not None:
            yield f"address {wrong} of `url` is not http(s)://host:port; what follows goes into `path`."
        if len({url.rstrip("/") for url in self.url}) < len(self.url):
            yield "`url` names an address twice: each replica asks a server of its own."
        if self.url and (name := self.differs(*_OF_A_COMMAND)):
            yield f"`{name}` has no effect on a server that runs already: leave it out."
        of_an_image = [name for name in _OF_AN_IMAGE if name != "secret_env" or not self.url]
        if self.image is None and (name := self.differs(*of_an_image)):
            yield f"`{name}` is of a container: give its `image`, or leave it out."
        if self.image is None and set(self.secret_env) - {self.api_key_env}:
            yield "with `url`, `secret_env` holds the key that `api_key_env` names, and nothing else."

    @checked
    def _in_a_container(self) -> Iterator[str]:
        if self.image is None:
            return
        yield from lower_limits(self.reserve, self.limit)
        unknown = next((word for word in OF_A_START if any(word in text for text in self._texts)), None)
        if unknown is not None:
            yield f"{unknown} is not known in a container: leave it out."
        if self.port == METRICS_PORT:
            yield f"port {METRICS_PORT} of a pod has the /metrics of the replica: choose another `port`."
        if self.api_key_env is not None and self.api_key_env not in self.secret_env:
            yield f"`api_key_env` names what no pod has: say in `secret_env`, e.g. {{{self.api_key_env}: name/key}}."
        if len(self.model_dump_json()) > _MOST_OF_A_VARIABLE:
            yield f"the server is longer than a pod's variable ({_MOST_OF_A_VARIABLE:,}): shorten `tensors` or `body`."

    @property
    def _texts(self) -> list[str]:
        """What the server is told."""
        return [*self.command, *self.args, *self.env.values()]

    @property
    def pod_port(self) -> int:
        """Where it listens in a pod."""
        return self.port or POD_PORT

    @checked
    def _no_key_in_the_file(self) -> Iterator[str]:
        parameters = [name for name, _ in parse_qsl(urlsplit(self.path or "").query, keep_blank_values=True)]
        shown = [*self.headers, *parameters, *(self.env if self.image else ())]
        secret = next((name for name in shown if _SECRET.fullmatch(name)), None)
        if secret is not None:
            yield (
                f"{secret} holds a key, and the file is kept with the results: name a variable that holds it in `api_key_env` (its header "
                f"in `api_key_header`); of a container, a Secret in `secret_env`, e.g. {{{secret}: name/key}}."
            )

    @checked
    def _told_its_port(self) -> Iterator[str]:
        has_port = any(PORT_PLACEHOLDER in text for text in self._texts)
        if not (has_port or self.url or (self.image and self.port)):
            yield f"the server does not know its port: write {PORT_PLACEHOLDER} in `command`, `args` or `env`; an `image` may have a `port`."

    @checked
    def _one_kind_of_load(self) -> Iterator[str]:
        if sum(load is not None for load in (self.rate, self.trace, self.concurrency)) > 1:
            yield "`rate` and `trace` are open loops and `concurrency` a closed one: keep one of them."
        if self.rate is None and (name := self.differs("arrivals", "ramp_to")):
            yield f"`{name}` has no effect without `rate`."
        if (self.arrivals == "gamma") is (self.burstiness is None):
            yield "arrivals gamma have a `burstiness`, e.g. 0.5, and no others have one."
        texts = self.requests.differs("file", "input_tokens", "output_tokens", "shared_prefix")
        if self.trace is not None and (texts or self.protocol in OPEN_INFERENCE):
            yield "`trace` says how long texts are: leave lengths and `file` out of `requests`, and use no oip protocol."
        if self.requests.sessions is not None and self.protocol not in LANGUAGE:
            yield "`requests.sessions` are conversations: use a protocol of a language model, e.g. openai-chat."
        if self.requests.sessions is not None and (self.requests.image or self.requests.audio):
            yield "`requests.sessions` are of text: leave `image` and `audio` out, or write them into the messages of a file."
        if self.requests.shared_prefix is not None and self.requests.file is not None:
            yield "`requests.shared_prefix` is of synthetic texts: leave it or `file` out."

    @checked
    def _images_and_sounds_have_a_place(self) -> Iterator[str]:
        for name in ("image", "audio"):
            given = self.requests.differs(name)
            body = json.dumps([self.body, self.extra_body])
            in_body = any(place in body for place in (f"{{{name}}}", f"{{{name}_file}}"))
            if in_body and not given:
                yield f"`{'body' if self.protocol is Protocol.HTTP else 'extra_body'}` holds {{{name}}}, and nothing says what that is: give `requests.{name}`."
            if given and self.requests.file is not None:
                yield f"`requests.file` says what is asked: leave `{name}` out, or put it into the file."
            takes = _WITH_IMAGE if name == "image" else _WITH_AUDIO
            if given and not in_body and self.protocol not in takes:
                those = ", ".join(sorted(protocol.value for protocol in takes))
                yield f"`requests.{name}` goes with protocol {those}, or a `body` or `extra_body` with {{{name}}}."

    @model_validator(mode="before")
    @classmethod
    def _as_the_protocol_says(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        protocol = given.get("protocol")
        own: dict[str, Any] = {}
        if protocol == Protocol.OIP and not given.get("url"):
            own["ready"] = {"path": OIP_READY}
        if isinstance(protocol, str) and protocol in _KEY_HEADERS:
            own["api_key_header"] = _KEY_HEADERS[Protocol(protocol)]
        return {**own, **given}

    @checked
    def _fields_of_the_protocol(self) -> Iterator[str]:
        yield from self.without_effect(self.protocol, _OF_PROTOCOLS)
        missing = next((name for name in _NEEDED.get(self.protocol, ()) if not self.differs(name)), None)
        if missing is not None:
            yield f"protocol {self.protocol.value} needs `{missing}`."
        if self.requests.file is not None and self.protocol in {*OPEN_INFERENCE, Protocol.OWN}:
            yield f"`requests.file` holds texts, which protocol {self.protocol.value} does not send: leave it out."
