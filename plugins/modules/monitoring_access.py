#!/usr/bin/python
"""Who may ask a service of the monitoring, and by which certificate it is known: made on the machine, kept there and in Secrets."""

from __future__ import annotations

import base64
import ctypes
import ipaddress
import json
import os
import re
import secrets
import stat
import tempfile
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: monitoring_access
short_description: Gives a service of the monitoring a certificate and a login, and renews the certificate before it ends
description:
  - An authority of its own signs; its key, the services' keys and passwords lie in one folder that only root reads.
  - The Secret C(SERVICE-web) is for the server (certificate, key, and C(web.yml) where Prometheus asks for the login itself); the
    Secret C(secret) is for those who ask (C(url), C(username), C(password), C(ca.crt)).
  - A password that is in the Secret already stays, then one in the folder; else a new one is made. No argument, log or result has it.
  - The Service has to be there, because the certificate names its address.
options:
  service: {description: Name of the Service., type: str, required: true}
  namespace: {description: Its namespace., type: str, default: monitoring}
  secret: {description: Name of the Secret for those who ask., type: str, required: true}
  user: {description: Name to log in with., type: str, required: true}
  web_config: {description: Write the login as Prometheus' web configuration., type: bool, default: false}
  node_addresses: {description: Have the certificate name the nodes' addresses as well., type: bool, default: false}
  days_min: {description: Days before its end at which a certificate is made anew., type: int, default: 60}
  folder: {description: Where keys and passwords are kept., type: path, default: /etc/kubernetes/monitoring}
  kubeconfig: {description: Whose credentials., type: path, default: /etc/kubernetes/admin.conf}
  kubectl: {description: The binary., type: path, default: /usr/bin/kubectl}
author: [the project]
"""

EXAMPLES = r"""
- name: Give Prometheus its certificate and its login
  monitoring_access:
    service: prometheus
    secret: prometheus-access
    user: harness
    web_config: true
"""

RETURN = r"""
url: {description: Where the service is asked., type: str, returned: always}
generation: {description: How often its certificate was made; a pod that reads it at its start alone goes by this., type: int, returned: always}
"""

CA_DAYS, LEAF_DAYS = 3650, 365
DAY_S = 86_400
PASSWORD_BYTES = 24
BCRYPT_COST = 10
MANAGER = "node-provisioning"
CA_EXTENSIONS = "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\nsubjectKeyIdentifier=hash\n"
LEAF_EXTENSIONS = (
    "basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=serverAuth\n"
    "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\nsubjectAltName={names}\n"
)


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

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.options = module.params
        self.folder = Path(self.options["folder"])
        self.changed = False

    def kubectl(self, *words: str, data: str | None = None) -> str:
        """What kubectl says; ends the module where it is refused."""
        options = self.options
        command = [options["kubectl"], "--kubeconfig", options["kubeconfig"], "--request-timeout", "60s", *words]
        code, out, err = self.module.run_command(command, data=data)
        if code != 0:
            said = str(err or out).strip()
            self.module.fail_json(msg=f"the API server did not answer `kubectl {' '.join(words[:3])}`: {said}")
        return str(out)

    def find(self, kind: str, name: str) -> dict[str, Any]:
        """An object of the namespace; empty where there is none."""
        where = ("--namespace", self.options["namespace"], "--ignore-not-found", "--output", "json")
        said = self.kubectl("get", kind, name, *where)
        found: dict[str, Any] = json.loads(said) if said.strip() else {}
        return found

    def openssl(self, *words: str) -> tuple[int, str]:
        """Exit status of openssl, and what it said."""
        code, out, err = self.module.run_command(["openssl", *words])
        return int(code), str(out if code == 0 else err or out).strip()

    def make(self, *words: str) -> None:
        """The same where it has to succeed."""
        code, said = self.openssl(*words)
        if code != 0:
            self.module.fail_json(msg=f"openssl {words[0]} made no certificate: {said}")

    def path(self, name: str) -> Path:
        """A file of the folder."""
        return self.folder / name

    def kept(self, name: str) -> str:
        """Text of a file of the folder; empty where there is none."""
        path = self.path(name)
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def keep(self, name: str, text: str) -> None:
        """Write a file of the folder where it is another."""
        if self.kept(name) == text:
            return
        self.changed = True
        if not self.module.check_mode:
            new = self.path(f".{name}.new")
            new.write_text(text, encoding="utf-8")
            new.replace(self.path(name))

    def close(self) -> None:
        """Nobody but root reads what is kept, whatever somebody has opened."""
        for path, mode in [(self.folder, 0o700), *((one, 0o600) for one in self.folder.iterdir())]:
            if stat.S_IMODE(path.stat().st_mode) != mode:
                self.changed = True
                if not self.module.check_mode:
                    path.chmod(mode)

    def good(self, name: str) -> bool:
        """Whether a certificate is there with its key, is the authority's, and goes on long enough."""
        certificate, key = self.path(f"{name}.crt"), self.path(f"{name}.key")
        if not (certificate.exists() and key.exists()):
            return False
        lasts = self.openssl(
            "x509", "-noout", "-checkend", str(self.options["days_min"] * DAY_S), "-in", str(certificate)
        )
        signed = self.openssl("verify", "-CAfile", str(self.path("ca.crt")), str(certificate))
        theirs = self.openssl("x509", "-noout", "-pubkey", "-in", str(certificate))
        ours = self.openssl("pkey", "-pubout", "-in", str(key))
        return lasts[0] == signed[0] == theirs[0] == 0 and theirs == ours

    def names(self, name: str) -> set[str]:
        """What a certificate is for, as openssl words it."""
        code, said = self.openssl("x509", "-noout", "-ext", "subjectAltName", "-in", str(self.path(f"{name}.crt")))
        return {part.strip() for part in said.partition("\n")[2].split(",")} if code == 0 else set()

    def sign(self, name: str, subject: str, extensions: str, *, days: int, by: str = "") -> None:
        """A new key and its certificate; by: the authority's name, empty for one that signs itself."""
        self.changed = True
        if self.module.check_mode:
            return
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            key, request, certificate, more = (str(Path(scratch, one)) for one in ("key", "request", "crt", "ext"))
            Path(more).write_text(extensions, encoding="utf-8")
            self.make("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", key)
            self.make("req", "-new", "-key", key, "-subj", f"/CN={subject}", "-out", request)
            signer = ["-signkey", key]
            if by:
                signer = ["-CA", str(self.path(f"{by}.crt")), "-CAkey", str(self.path(f"{by}.key"))]
            serial = f"0x{secrets.token_hex(16)}"
            words = ["x509", "-req", "-in", request, *signer, "-set_serial", serial, "-days", str(days), "-sha256"]
            self.make(*words, "-extfile", more, "-out", certificate)
            # The key first: a certificate without its key is made anew by the next run.
            Path(key).replace(self.path(f"{name}.key"))
            Path(certificate).replace(self.path(f"{name}.crt"))

    def certificates(self, service: str, address: str) -> None:
        """The authority and the service's own, each made where it is not good."""
        options = self.options
        if not self.good("ca"):
            self.sign("ca", "monitoring-ca", CA_EXTENSIONS, days=CA_DAYS)
        host = f"{service}.{options['namespace']}"
        dns = [service, host, f"{host}.svc", "localhost"]
        addresses = ["127.0.0.1", address] if address else ["127.0.0.1"]
        if options["node_addresses"]:
            addresses += self.nodes()
        # An IPv6 address is written in another way than it is given.
        wanted = {f"DNS:{one}" for one in dns} | {f"IP Address:{printed(one)}" for one in addresses}
        if not self.good(service) or self.names(service) != wanted:
            names = ",".join([f"DNS:{one}" for one in dns] + [f"IP:{one}" for one in dict.fromkeys(addresses)])
            self.sign(service, f"{host}.svc", LEAF_EXTENSIONS.format(names=names), days=LEAF_DAYS, by="ca")

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


def printed(address: str) -> str:
    """An address as openssl words it."""
    parsed = ipaddress.ip_address(address)
    if parsed.version == 4:
        return address
    return ":".join(f"{int(part, 16):X}" for part in parsed.exploded.split(":"))


def main() -> None:
    """Runs the module."""
    module = AnsibleModule(
        argument_spec={
            "service": {"type": "str", "required": True},
            "namespace": {"type": "str", "default": "monitoring"},
            "secret": {"type": "str", "required": True, "no_log": False},
            "user": {"type": "str", "required": True},
            "web_config": {"type": "bool", "default": False},
            "node_addresses": {"type": "bool", "default": False},
            "days_min": {"type": "int", "default": 60},
            "folder": {"type": "path", "default": "/etc/kubernetes/monitoring"},
            "kubeconfig": {"type": "path", "default": "/etc/kubernetes/admin.conf"},
            "kubectl": {"type": "path", "default": "/usr/bin/kubectl"},
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LC_ALL": "C", "LANG": "C"}
    if module.check_mode and module.get_bin_path(module.params["kubectl"]) is None:
        module.exit_json(changed=True, url="", generation=1, msg="no kubectl on this machine yet: all would be made")
    module.exit_json(**Access(module).run())


if __name__ == "__main__":
    main()
