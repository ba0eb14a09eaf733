"""The model of fake_oip_server over gRPC, with Triton's own messages: ``python -m tests.support.fake_oip_grpc_server --port N``."""

import argparse
import struct
import sys
from concurrent import futures

import grpc
from tritonclient.grpc import service_pb2
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceServicer, add_GRPCInferenceServiceServicer_to_server

from tests.support.fake_oip_server import INPUTS, wrong

FORMATS = {"FP32": "f", "INT32": "i"}


class Servicer(GRPCInferenceServiceServicer):
    def ModelInfer(self, request, context):  # noqa: N802 - the protocol's name
        if request.model_name != "sum":
            context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{request.model_name}' is not found")
        pairs = zip(request.inputs, request.raw_input_contents, strict=True)
        tensors = {
            tensor.name: {
                "name": tensor.name,
                "datatype": tensor.datatype,
                "shape": list(tensor.shape),
                "data": elements(tensor.datatype, raw),
            }
            for tensor, raw in pairs
        }
        error = next(filter(None, map(wrong, tensors.values())), None)
        if error or set(tensors) != set(INPUTS):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, error or "expected the inputs x and note")
        x = tensors["x"]["data"]
        rows = [sum(x[at : at + 4]) for at in range(0, len(x), 4)]
        answer = service_pb2.ModelInferResponse(model_name="sum", id=request.id)
        output = answer.outputs.add(name="y", datatype="FP32", shape=[len(rows), 1])
        output.parameters["sequence"].int64_param = 1
        answer.raw_output_contents.append(struct.pack(f"<{len(rows)}f", *rows))
        return answer


def elements(datatype, raw):
    """Those of a tensor in raw_input_contents."""
    if datatype != "BYTES":
        return list(struct.unpack(f"<{len(raw) // 4}{FORMATS[datatype]}", raw))
    found = []
    while raw:
        (size,) = struct.unpack_from("<I", raw)
        found.append(raw[4 : 4 + size].decode())
        raw = raw[4 + size :]
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    add_GRPCInferenceServiceServicer_to_server(Servicer(), server)
    server.add_insecure_port(f"127.0.0.1:{parser.parse_args().port}")
    server.start()
    sys.stdout.write("serving\n")
    sys.stdout.flush()
    server.wait_for_termination()
