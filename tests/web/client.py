"""HTTP requests to a server under test, without a client library."""

import http.client
import json
import struct

import torch


def request(server, method, path, body=None, headers=None):
    """Return (status, headers, body) of one request, by default with cookie, Host and content type."""
    given = {"cookie": f"qkv-{server.port}={server.token}", "content-type": "application/json", **(headers or {})}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.putrequest(method, path, skip_host="host" in given, skip_accept_encoding=True)
        for name, value in given.items():
            if value is not None:
                connection.putheader(name, value)
        if body is not None:
            connection.putheader("content-length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def query(server, name, **params):
    """Return (record, tensors) of a request that must succeed."""
    status, _, body = request(server, "POST", f"/api/{name}", json.dumps(params).encode())
    assert status == 200, body
    return unpack(body)


def query_error(server, name, **params):
    """Return (status, message) of a request that must fail."""
    status, _, body = request(server, "POST", f"/api/{name}", json.dumps(params).encode())
    assert status >= 400
    return status, json.loads(body)["error"]


def unpack(body):
    """Read the format of `wire` by the struct module."""
    (length,) = struct.unpack_from("<I", body)
    record = json.loads(body[4 : 4 + length])
    offset, tensors = 4 + length, {}
    for tensor in record.pop("tensors"):
        count = 1
        for size in tensor["shape"]:
            count *= size
        letter, width = {"f4": ("f", 4), "u1": ("B", 1)}[tensor["type"]]
        values = struct.unpack_from(f"<{count}{letter}", body, offset)
        tensors[tensor["name"]] = torch.tensor(values).reshape(tensor["shape"])
        offset += -(-count * width // 4) * 4
    assert offset == len(body)
    return record, tensors
