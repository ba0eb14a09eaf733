"""The cluster's DNS as a node reaches it: it knows the API server's name alone, and no pod is behind it.

A real one is a Service: kube-proxy sends what is asked of its address to CoreDNS's pods. Here the address is the machine's own.
"""

import socketserver
import subprocess
from ipaddress import IPv4Address
from typing import Any

HEADER = 12
# A name that stands in the question, of an IPv4 address, for 30 s.
ANSWER = bytes.fromhex("c00c000100010000001e0004")


def serve(settings: dict[str, Any]) -> None:
    """Answer at the address that the kubelet's configuration gives to pods."""
    for address in settings.get("clusterDNS", ())[:1]:
        subprocess.run(["ip", "address", "replace", f"{address}/32", "dev", "lo"], check=False)
        with listening(address, 53, settings["clusterDomain"]) as server:
            server.serve_forever()


def listening(address: str, port: int, domain: str) -> socketserver.UDPServer:
    """A server at this address; the API server's is nine before it."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            question, sock = self.request
            name = f"kubernetes.default.svc.{domain}"
            sock.sendto(answer(question, name, IPv4Address(address) - 9), self.client_address)

    return socketserver.UDPServer((address, port), Handler)


def answer(question: bytes, name: str, found: IPv4Address) -> bytes:
    """The address of the one name; of any other that there is none such."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    known = question[HEADER:].startswith(labels + b"\0")
    header = question[:2] + bytes([0x85, 0x80 if known else 0x83, 0, 1, 0, int(known), 0, 0, 0, 0])
    return header + question[HEADER:] + (ANSWER + found.packed if known else b"")
