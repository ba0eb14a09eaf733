"""The messages of the Open Inference Protocol over gRPC, held against those of Triton's own client library."""

import itertools
import math

import numpy as np
import pytest
from tritonclient.grpc import InferInput, service_pb2

from harness.errors import LoadError
from harness.traffic.open_inference import TensorRequest, has_outputs

NUMPY = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8", "BOOL": "?"} | {
    f"{sign.upper()}{8 * size}": f"<{sign[0]}{size}" for sign in ("int", "uint") for size in (1, 2, 4, 8)
}


def decoded(tensors, text=""):
    return service_pb2.ModelInferRequest.FromString(TensorRequest("a model", tensors, "{prompt}").encode(text))


@pytest.mark.parametrize("datatype", sorted(NUMPY))
def test_numbers_are_sent_as_tritons_client_sends_them(datatype):
    values = np.array([[0, 1, 1], [1, 0, 1]] if datatype == "BOOL" else [[0, 1, 99], [3, 7, 100]]).astype(
        NUMPY[datatype]
    )
    theirs = InferInput("x", [2, 3], datatype)
    theirs.set_data_from_numpy(values)

    ours = decoded([{"name": "x", "shape": [2, 3], "datatype": datatype, "data": values.ravel().tolist()}])

    assert ours.model_name == "a model"
    (tensor,) = ours.inputs
    assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("x", datatype, [2, 3])
    assert list(ours.raw_input_contents) == [theirs._get_content()]


def test_texts_are_sent_as_tritons_client_sends_them():
    theirs = InferInput("t", [2], "BYTES")
    theirs.set_data_from_numpy(np.array(["say the sun", "grün"], dtype=object))
    data = {"name": "t", "shape": [2], "datatype": "BYTES", "data": ["say {prompt}", "grün"]}

    assert list(decoded([data], "the sun").raw_input_contents) == [theirs._get_content()]


def test_a_long_tensor_keeps_its_length():
    size = 200_000
    (raw,) = decoded([{"name": "x", "shape": [size], "datatype": "FP32", "data": [0.5] * size}]).raw_input_contents
    assert (len(raw), math.prod([size])) == (4 * size, size)


def test_only_what_holds_the_placeholder_varies():
    number = {"name": "x", "shape": [1], "datatype": "INT8", "data": [1]}
    text = {"name": "t", "shape": [1], "datatype": "BYTES", "data": ["same"]}
    assert not TensorRequest("m", [number, text], "{prompt}").varies
    assert TensorRequest("m", [number, text | {"data": ["{prompt}"]}], "{prompt}").varies


@pytest.mark.parametrize(
    ("datatype", "element"), [("UINT8", 300), ("INT8", 0.5), ("FP16", 1e9), ("BYTES", 1), ("INT64", "1")]
)
def test_an_element_that_does_not_fit_is_named(datatype, element):
    tensor = {"name": "x", "shape": [1], "datatype": datatype, "data": [element]}
    with pytest.raises(LoadError, match=f"an element of tensor x is no {datatype}"):
        TensorRequest("m", [tensor], "{prompt}")


def answer(outputs):
    made = service_pb2.ModelInferResponse(model_name="m", model_version="1", id="7")
    made.parameters["triton"].bool_param = True
    for name in outputs:
        made.outputs.add(name=name, datatype="FP32", shape=[1, 300])
        made.raw_output_contents.append(bytes(1200))
    return made.SerializeToString()


def test_whether_an_answer_has_outputs_is_read():
    assert has_outputs(answer(["y"]))
    assert not has_outputs(answer([]))
    assert not has_outputs(b"")


def test_what_is_cut_or_garbage_is_no_answer():
    whole = answer(["y", "z"])
    cut = [whole[:end] for end in (1, 2, 8, len(whole) - 1)]
    for each in itertools.chain(cut, [b"\xff" * 20, b"<html>"]):
        with pytest.raises(ValueError, match=r"it ends|wire type|longer"):
            has_outputs(each)
