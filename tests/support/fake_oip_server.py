"""A small server of the Open Inference Protocol v2 over HTTP: ``python -m tests.support.fake_oip_server --port N``.

It has one model, ``sum``: inputs x (FP32, [n, 4]) and note (BYTES, [1]); its output y is the sum of each row. What does not fit is
refused as the protocol says: 4xx with an object that has ``error``.
"""

import argparse
import json
import math
import sys

from tests.support.http_double import Answering, Double

INPUTS = {"x": ("FP32", 4), "note": ("BYTES", 1)}
LOADING_ANSWERS = 2
"""So many times it says that it is not ready."""


class Handler(Answering):
    asked_whether_ready = 0

    def reply(self):
        if self.command == "POST":
            self.infer()
            return
        if self.path != "/v2/health/ready":
            self.answer(404, {"error": f"unknown path {self.path}"})
            return
        Handler.asked_whether_ready += 1
        self.answer(200 if Handler.asked_whether_ready > LOADING_ANSWERS else 503, {})

    def infer(self):
        asked = json.loads(self.body())
        if self.path != "/v2/models/sum/infer":
            self.answer(404, {"error": f"unknown path {self.path}"})
            return
        error = next(filter(None, map(wrong, asked["inputs"])), None)
        if error or {each["name"] for each in asked["inputs"]} != set(INPUTS):
            self.answer(400, {"error": error or "expected the inputs x and note"})
            return
        x = next(each for each in asked["inputs"] if each["name"] == "x")
        rows = [sum(x["data"][at : at + 4]) for at in range(0, len(x["data"]), 4)]
        output = {"name": "y", "shape": [len(rows), 1], "datatype": "FP32", "data": rows}
        self.answer(200, {"model_name": "sum", "id": asked.get("id", ""), "outputs": [output]})


def wrong(tensor):
    """Why a tensor is refused; None: it fits."""
    datatype, width = INPUTS.get(tensor["name"], ("", 0))
    if (tensor["datatype"], tensor["shape"][-1]) != (datatype, width):
        return f"unexpected datatype or shape for input {tensor['name']!r}"
    if math.prod(tensor["shape"]) != len(tensor["data"]):
        return f"unexpected number of elements for input {tensor['name']!r}"
    kind = str if datatype == "BYTES" else (int, float)
    return None if all(isinstance(each, kind) for each in tensor["data"]) else "unexpected element"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    server = Double(Handler, port=parser.parse_args().port)
    sys.stdout.write("serving\n")
    sys.stdout.flush()
    server.serve_forever()
