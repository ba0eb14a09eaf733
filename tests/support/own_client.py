"""A client as a user would write one: completions of the fake streaming server, a connection for each."""

import asyncio
import json


class Client:
    def __init__(self, host, port):
        self.address = (host, port)

    async def ask(self, prompt, output_tokens, on_token):
        reader, writer = await asyncio.open_connection(*self.address)
        try:
            body = json.dumps({"prompt": prompt, "max_tokens": output_tokens, "stream": True}).encode()
            writer.write(f"POST /v1/completions HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            pieces = 0
            while (line := await reader.readline()) != b"data: [DONE]\n":
                if line.startswith(b"data: ") and b'"text"' in line:
                    pieces += 1
                    on_token()
                if not line:
                    raise ValueError("the stream ended before its end")
        finally:
            writer.close()
        return {"input_tokens": len(prompt.split()), "output_tokens": pieces}

    async def close(self):
        pass


def make(*, host, port, tls, model, headers):
    assert (tls, model, headers) == (False, None, {})
    return Client(host, port)
