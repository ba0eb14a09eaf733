#!/usr/bin/python
"""Who may ask a service of the monitoring, and by which certificate it is known: made on the machine, kept there and in Secrets."""

from __future__ import annotations

import base64
import ctypes
import json
import os
import re
import secrets
import stat
import tempfile
from pathlib import Path
from typing import Any

from ..module_utils.documented import documented
from ..module_utils.kubectl import KUBECTL, kubectl

DOCUMENTATION = r"""
{"module": "monitoring_access", "author": ["the project"], "short_description": "Gives a service of the monitoring a certificate and a login, and renews the certificate before it ends",
 "description": [
  "An authority of its own signs; its key, the services' keys and passwords lie in one folder that only root reads.",
  "The Secret C(SERVICE-web) is for the server (certificate, key, and C(web.yml) where Prometheus asks for the login itself); the Secret C(secret) is for those who ask (C(url), C(username), C(password), C(ca.crt)).",
  "A password that is in the Secret already stays, then one in the folder; else a new one is made. No argument, log or result has it.",
  "The Service has to be there, because the certificate names its address.",
  "Returns url, and generation: how often the certificate was made, by which a pod goes that reads it at its start alone."],
 "options": {
  "service": {"type": "str", "required": true, "description": "Name of the Service."},
  "namespace": {"type": "str", "default": "monitoring", "description": "Its namespace."},
  "ask": {"type": "str", "default": "", "description": "A path of the service that is asked with the login, and nothing is changed; returns the answer as C(json)."},
  "secret": {"type": "str", "no_log": false, "description": "Name of the Secret for those who ask."},
  "user": {"type": "str", "description": "Name to log in with."},
  "web_config": {"type": "bool", "default": false, "description": "Write the login as Prometheus' web configuration."},
  "node_addresses": {"type": "bool", "default": false, "description": "Have the certificate name the nodes' addresses as well."},
  "days_min": {"type": "int", "default": 60, "description": "Days before its end at which a certificate is made anew."},
  "folder": {"type": "path", "default": "/etc/kubernetes/monitoring", "description": "Where keys and passwords are kept."}}}
"""

CA_DAYS, LEAF_DAYS = 3650, 365
DAY_S, ANSWER_S = 86_400, 30
PASSWORD_BYTES = 24
BCRYPT_COST = 10
MANAGER = "node-provisioning"
# By whose certificate it is.
EXTENSIONS = {
    "ca": ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign", "subjectKeyIdentifier=hash"),
    "service": (
        *("basicConstraints=critical,CA:FALSE", "keyUsage=critical,digitalSignature", "extendedKeyUsage=serverAuth"),
        *("subjectKeyIdentifier=hash", "authorityKeyIdentifier=keyid"),
    ),
}


def bcrypt(password: str, salt: str = "") -> str:
    """The password's hash as Prometheus takes it; with the salt of an earlier hash (or all of it) the same one again."""
    library = ctypes.CDLL("libcrypt.so.1")
    library.crypt.restype = library.crypt_gensalt.restype = ctypes.c_char_p
    given = salt.encode() or library.crypt_gensalt(b"$2b$", ctypes.c_ulong(BCRYPT_COST), None, 0)
    return (library.crypt(password.encode(), given) or b"").decode()


def web_config(user: str, hashed: str) -> str:
    """Prometheus' web configuration: TLS, and a login for everything."""
    return json.dumps(
        {
            "tls_server_config": {"cert_file": "tls.crt", "key_file": "tls.key", "min_version": "TLS12"},
            "basic_auth_users": {user: hashed},
        }
    )


class Access:
    """One service's certificate and login."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.options = module.params
        self.folder = Path(self.options["folder"])
        self.changed = False
        self.there: dict[str, dict[str, Any]] = {}

    def kubectl(self, *words: str, data: str | None = None) -> str:
        """What kubectl says; ends the module where it is refused."""
        code, out, err = kubectl(self.module, "--request-timeout", "60s", *words, data=data)
        if code != 0:
            self.module.fail_json(
                msg=f"the API server did not answer `kubectl {' '.join(words[:3])}`: {(err or out).strip()}"
            )
        return out

    def look(self) -> None:
        """Asks at once for all that is there already."""
        service, secret = self.options["service"], self.options["secret"]
        names = (f"service/{service}", f"secret/{service}-web", f"secret/{secret}")
        where = ("--namespace", self.options["namespace"], "--ignore-not-found", "--output", "json")
        said = self.kubectl("get", *names, *where)
        found = json.loads(said) if said.strip() else {"items": []}
        self.there = {f"{one['kind'].lower()}/{one['metadata']['name']}": one for one in found.get("items", [found])}

    def find(self, kind: str, name: str) -> dict[str, Any]:
        """One of them; empty where there is none."""
        return self.there.get(f"{kind}/{name}", {})

    def openssl(self, *words: str) -> tuple[int, str]:
        """Exit status of openssl, and what it said."""
        code, out, err = self.module.run_command(["openssl", *words])
        return int(code), str(out if code == 0 else err or out).strip()

    def kept(self, name: str) -> str:
        """Text of a file of the folder; empty where there is none."""
        path = self.folder / name
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def keep(self, name: str, text: str) -> None:
        """Write a file of the folder where it is another."""
        if self.kept(name) == text:
            return
        self.changed = True
        if not self.module.check_mode:
            new = self.folder / f".{name}.new"
            new.write_text(text, encoding="utf-8")
            new.replace(self.folder / name)

    def close(self) -> None:
        """Nobody but root reads what is kept, whatever somebody has opened."""
        for path, mode in [(self.folder, 0o700), *((one, 0o600) for one in self.folder.iterdir())]:
            if stat.S_IMODE(path.stat().st_mode) != mode:
                self.changed = True
                if not self.module.check_mode:
                    path.chmod(mode)

    def good(self, name: str) -> bool:
        """Whether a certificate is there with its key, is the authority's, and goes on long enough."""
        certificate, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        if not (certificate.exists() and key.exists()):
            return False
        lasts = self.openssl(
            "x509", "-noout", "-checkend", str(self.options["days_min"] * DAY_S), "-in", str(certificate)
        )
        signed = self.openssl("verify", "-CAfile", str(self.folder / "ca.crt"), str(certificate))
        theirs = self.openssl("x509", "-noout", "-pubkey", "-in", str(certificate))
        ours = self.openssl("pkey", "-pubout", "-in", str(key))
        return lasts[0] == signed[0] == theirs[0] == 0 and theirs == ours

    def sign(self, name: str, subject: str, *extensions: str, days: int, by: str = "") -> None:
        """A new key and its certificate; by: the authority's name, empty for one that signs itself."""
        self.changed = True
        if self.module.check_mode:
            return
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            key, certificate = Path(scratch, "key"), Path(scratch, "crt")
            words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-sha256"]
            words += ["-days", str(days), "-set_serial", f"0x{secrets.token_hex(16)}", "-subj", f"/CN={subject}"]
            # Without the machine's own settings, which may add extensions of their own.
            words += ["-config", "/dev/null", *(word for extension in extensions for word in ("-addext", extension))]
            words += ["-CA", str(self.folder / f"{by}.crt"), "-CAkey", str(self.folder / f"{by}.key")] if by else []
            code, said = self.openssl(*words, "-keyout", str(key), "-out", str(certificate))
            if code != 0:
                self.module.fail_json(msg=f"openssl made no certificate: {said}")
            # The key first: a certificate without its key is made anew by the next run.
            key.replace(self.folder / f"{name}.key")
            certificate.replace(self.folder / f"{name}.crt")

    def certificates(self, service: str, address: str) -> None:
        """The authority and the service's own, each made where it is not good."""
        if not self.good("ca"):
            self.sign("ca", "monitoring-ca", *EXTENSIONS["ca"], days=CA_DAYS)
        host = f"{service}.{self.options['namespace']}"
        addresses = ["127.0.0.1", *filter(None, [address]), *(self.nodes() if self.options["node_addresses"] else [])]
        names = [f"DNS:{name}" for name in (service, host, f"{host}.svc", "localhost")]
        names += [f"IP:{name}" for name in dict.fromkeys(addresses)]
        wanted = f"subjectAltName={','.join(names)}"
        if not self.good(service) or self.kept(f"{service}.names") != wanted:
            self.sign(service, f"{host}.svc", *EXTENSIONS["service"], wanted, days=LEAF_DAYS, by="ca")
            self.keep(f"{service}.names", wanted)

    def generation(self, service: str) -> str:
        """How often the certificate was made: once more where the Secret has another, whichever run made it."""
        data = self.find("secret", f"{service}-web").get("data", {})
        handed, counted = (base64.b64decode(data.get(key, "")).decode() for key in ("tls.crt", "generation"))
        known = max(int(one or 0) for one in (counted, self.kept(f"{service}.generation")))
        generation = str(max(known + (handed not in {"", self.kept(f"{service}.crt")}), 1))
        self.keep(f"{service}.generation", generation)
        return generation

    def nodes(self) -> list[str]:
        """The addresses of the cluster's nodes."""
        items = json.loads(self.kubectl("get", "nodes", "--output", "json"))["items"]
        told = [one for item in items for one in item.get("status", {}).get("addresses", ())]
        return sorted(one["address"] for one in told if one["type"] in ("InternalIP", "ExternalIP"))

    def password(self, service: str) -> str:
        """The one that is in use, else a new one."""
        data = self.find("secret", self.options["secret"]).get("data", {})
        in_use = base64.b64decode(data.get("password", "")).decode()
        password = in_use or self.kept(f"{service}.password") or secrets.token_urlsafe(PASSWORD_BYTES)
        self.keep(f"{service}.user", self.options["user"])
        self.keep(f"{service}.password", password)
        return password

    def hashed(self, service: str, password: str) -> str:
        """The password's hash, the one that is kept while it is right."""
        kept = self.kept(f"{service}.hash")
        if kept and bcrypt(password, kept) == kept:
            return kept
        made = bcrypt(password)
        if not re.fullmatch(r"\$2b\$\d\d\$[./A-Za-z0-9]{53}", made):
            self.module.fail_json(msg="this machine's libcrypt makes no bcrypt hash, which Prometheus needs.")
        self.keep(f"{service}.hash", made)
        return made

    def hand_over(self, name: str, data: dict[str, str]) -> None:
        """A Secret with exactly these values."""
        wanted = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
        if self.find("secret", name).get("data") == wanted:
            return
        self.changed = True
        place = {"name": name, "namespace": self.options["namespace"]}
        body = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": place, "data": wanted}
        if not self.module.check_mode:
            words = ("apply", "--server-side", "--force-conflicts", "--field-manager", MANAGER, "--filename", "-")
            self.kubectl(*words, data=json.dumps(body))

    def answer(self, path: str) -> Any:
        """What the service says to who has the login, from the machine itself; ends the module where it says nothing."""
        import ssl  # these take longer to import than all the rest
        from http.client import HTTPException
        from urllib.error import HTTPError
        from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

        service = self.options["service"]
        login = base64.b64encode(f"{self.kept(f'{service}.user')}:{self.kept(f'{service}.password')}".encode()).decode()
        try:
            request = Request(f"{self.kept(f'{service}.url')}{path}", headers={"Authorization": f"Basic {login}"})  # noqa: S310
            context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
            opener = build_opener(ProxyHandler({}), HTTPSHandler(context=context))
            with opener.open(request, timeout=ANSWER_S) as response:
                return json.load(response)
        except HTTPError as error:
            said = error.read(2000).decode(errors="replace")
            self.module.fail_json(msg=f"{service} did not answer {path}: {error}: {said}")
        except (OSError, ValueError, HTTPException) as error:
            self.module.fail_json(msg=f"{service} did not answer {path}: {error!r}")

    def run(self) -> dict[str, Any]:
        """Does all of it; returns the module's result."""
        service, user = self.options["service"], self.options["user"]
        os.umask(0o077)
        if not self.folder.exists():
            self.changed = True
            if self.module.check_mode:
                return {"changed": True, "url": "", "generation": 1}
            self.folder.mkdir(mode=0o700)
        self.close()
        self.look()
        spec = self.find("service", service).get("spec", {})
        address = spec.get("clusterIP", "")
        if not address and not self.module.check_mode:
            self.module.fail_json(msg=f"the Service {service} has no address that its certificate could name.")
        password = self.password(service)
        self.certificates(service, address)
        host = f"[{address}]" if ":" in address else address
        url = f"https://{host}:{spec['ports'][0]['port']}" if address else ""
        generation = self.generation(service)
        web = {"tls.crt": self.kept(f"{service}.crt"), "tls.key": self.kept(f"{service}.key"), "generation": generation}
        if self.options["web_config"]:
            web["web.yml"] = web_config(user, self.hashed(service, password))
        self.hand_over(f"{service}-web", web)
        access = {"url": url, "username": user, "password": password, "ca.crt": self.kept("ca.crt")}
        self.hand_over(self.options["secret"], access)
        self.keep(f"{service}.url", url)
        return {"changed": self.changed, "url": url, "generation": int(generation)}


def main() -> None:
    """Runs the module."""
    module = documented(DOCUMENTATION, required_if=[("ask", "", ["secret", "user"])])
    if module.params["ask"]:
        module.exit_json(changed=False, json=Access(module).answer(module.params["ask"]))
    if module.check_mode and module.get_bin_path(KUBECTL) is None:
        module.exit_json(changed=True, url="", generation=1, msg="no kubectl on this machine yet: all would be made")
    module.exit_json(**Access(module).run())


if __name__ == "__main__":
    main()
