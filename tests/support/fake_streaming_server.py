"""A server of known times: ``python -m tests.support.fake_streaming_server --port N``.

Answers OpenAI's completions and chat (streamed or whole), and anything else with a small JSON object. The first token is due
``--first-s`` after the request, each further one ``--gap-s`` later; with ``--spread`` each request has times of its own, up to so many
times longer. A server that is a whole gap late counts on from there, as an engine does. ``--fault`` makes it misbehave.

``--times FILE`` takes, at the end, an object for each chat: its text, when it was read, and of each token when it was due, and the
instants before and after it was sent (``time.perf_counter_ns``), between which the kernel had it.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

FAULTS = (
    "none",
    "500",
    "429",
    "401",
    "404",
    "302",
    "cut",
    "garbage",
    "mute",
    "not-json",
    "close",
    "in-stream",
    "slow-to-load",
    "hang",
    "too-long",
)
TOLD = {"/health": b"{}", "/v1/models": b'{"object": "list", "data": [{"id": "fake", "object": "model"}]}'}
HANGS_AFTER = 40
"""Requests that are answered before the fault ``hang``."""
NS_PER_S = 1_000_000_000
GOLDEN = (math.sqrt(5) - 1) / 2
"""Its multiples, modulo 1, fill the range from 0 to 1 evenly however many there are."""


class Server:
    """One server; ``asked`` holds the bodies of the requests, ``heads`` their heads."""

    def __init__(self, *, first_s=0.0, gap_s=0.0, spread=0.0, fault="none", usage=True, tls=None, room=math.inf):
        self.first_s, self.gap_s, self.spread, self.fault, self.usage = first_s, gap_s, spread, fault, usage
        self.tls = tls
        self.room = room
        self.asked = []
        self.heads = []
        self.connections = 0
        self.times = []
        """Of each chat, as ``--times`` has them."""

    async def serve(self, port=0):
        return await asyncio.start_server(self.handle, "127.0.0.1", port, ssl=self.tls)

    async def handle(self, reader, writer):
        self.connections += 1
        try:
            while await self.one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client went away, or the test is over
        finally:
            writer.transport.abort() if self.tls else writer.close()  # the other end may not be there to say farewell

    async def one(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lengths = [line.split(":")[1] for line in head.split("\r\n") if line.lower().startswith("content-length")]
        body = await reader.readexactly(int(lengths[0]) if lengths else 0)
        path = head.split()[1]
        told = {"/metrics": b'fake:requests_total{model="a b"} %d\nfake:rooms 7\n' % len(self.asked), **TOLD}
        if path in told:
            return self.whole(writer, 200, told[path])
        read_ns = time.perf_counter_ns()
        self.heads.append(head)
        self.asked.append(json.loads(body) if body.startswith(b"{") else body.decode())
        if self.fault in {"500", "429", "404", "401", "302"}:
            said = f"no such key: {head}" if self.fault == "401" else '{"error": "as told"}'
            return self.whole(writer, int(self.fault), said.encode())
        if self.fault == "slow-to-load" and len(self.asked) < 3:
            return self.whole(writer, 503, b"loading")
        if self.fault == "garbage":
            writer.write(b"\x00\x01 this is no HTTP\r\n\r\n")
            return False
        if self.fault == "mute" or (self.fault == "hang" and len(self.asked) > HANGS_AFTER):
            await asyncio.sleep(3600)
        if path.startswith("/v1/") and self.asked[-1].get("stream"):
            return await self.stream(writer, self.asked[-1], read_ns, chat="chat" in path)
        await asyncio.sleep(self.first_s)
        answer = {"choices": [{"text": "a b"}], "label": "cat", "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
        return self.whole(writer, 200, b"<html>" if self.fault == "not-json" else json.dumps(answer).encode())

    def whole(self, writer, status, body):
        keep = self.fault != "close"
        head = f"HTTP/1.1 {status} Told\r\nContent-Length: {len(body)}\r\nConnection: {'keep-alive' if keep else 'close'}\r\n\r\n"
        writer.write(head.encode() + body)
        return keep

    async def stream(self, writer, asked, read_ns, *, chat):
        if not self.room:
            return self.whole(writer, 429, b"no room")
        self.room -= 1
        try:
            return await self.tokens(writer, asked, read_ns, chat=chat)
        finally:
            self.room += 1

    async def tokens(self, writer, asked, read_ns, *, chat):
        kind = {"object": "chat.completion.chunk" if chat else "text_completion"}  # without it AIPerf takes no event
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        if chat:
            self.event(writer, {**kind, "choices": [{"delta": {"role": "assistant", "content": ""}}]})
        tokens = asked.get("max_tokens") or asked["max_completion_tokens"]
        tokens *= 3 if self.fault == "too-long" else 1
        longer = 1 + self.spread * (GOLDEN * len(self.times) % 1)
        gap_ns, due_ns = round(longer * self.gap_s * NS_PER_S), read_ns + round(longer * self.first_s * NS_PER_S)
        due, before, after = [], [], []
        if chat:
            text = str(asked["messages"][0]["content"])
            self.times.append({"text": text, "read": read_ns, "due": due, "before": before, "after": after})
        token = self.framed({**kind, "choices": [{"delta": {"content": " w"}} if chat else {"text": " w"}]})
        for number in range(tokens):
            await asyncio.sleep(max(due_ns - time.perf_counter_ns(), 0) / NS_PER_S)
            if number == 2 and self.fault == "cut":
                return False
            if number == 2 and self.fault == "in-stream":
                self.event(writer, {"error": {"message": "the engine is gone"}})
            due.append(due_ns)
            before.append(time.perf_counter_ns())
            writer.write(token)
            after.append(time.perf_counter_ns())
            due_ns = before[-1] if before[-1] > due_ns + gap_ns else due_ns
            due_ns += gap_ns
            await writer.drain()
        if self.usage:
            usage = {"prompt_tokens": 7, "completion_tokens": tokens}
            self.event(writer, {**kind, "choices": [], "usage": usage})
        writer.write(self.chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        return self.fault != "close"

    def event(self, writer, content):
        writer.write(self.framed(content))

    def framed(self, content):
        return self.chunk(b"data: " + json.dumps(content).encode() + b"\n\n")

    def chunk(self, data):
        return b"%x\r\n%s\r\n" % (len(data), data)


@contextlib.contextmanager
def running(*servers):
    """Addresses of servers that nobody of ours has started: they answer in a thread until the end."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def within(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    async def end():
        for each in listening:
            each.close()
        handlers = asyncio.all_tasks() - {asyncio.current_task()}
        for handler in handlers:
            handler.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)

    listening = [within(server.serve()) for server in servers]
    try:
        ports = [each.sockets[0].getsockname()[1] for each in listening]
        yield [
            f"http{'s' if server.tls else ''}://127.0.0.1:{port}" for server, port in zip(servers, ports, strict=True)
        ]
    finally:
        within(end())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def main(options):
    server = Server(**{name: getattr(options, name) for name in ("first_s", "gap_s", "spread", "fault", "room")})
    async with await server.serve(options.port) as listening:
        sys.stdout.write("Application startup complete\n")
        sys.stdout.flush()
        if options.live_s is not None:
            await asyncio.sleep(options.live_s)
            sys.exit("the engine ran out of luck")
        if options.times:
            told_to_end = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told_to_end.set)
            await told_to_end.wait()
            options.times.write_text(json.dumps(server.times))
            return
        await listening.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--first-s", type=float, default=0.0)
    parser.add_argument("--gap-s", type=float, default=0.0)
    parser.add_argument("--spread", type=float, default=0.0)
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--live-s", type=float)
    parser.add_argument("--room", type=float, default=math.inf, help="streams at once; others are refused with 429")
    parser.add_argument("--times", type=Path, help="takes the times of all tokens at the end")
    if os.environ.get("CHILDREN"):  # as engines have that compute in a process of their own
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
    options, factory = parser.parse_args(), None
    if options.times:
        from harness.traffic.loop import (
            precise_event_loop as factory,
        )  # a third of a second, for those who need its timers
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main(options))
