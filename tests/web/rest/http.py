"""Plain HTTP requests, for what the official client does not send."""

import json

from tests.web.client import request


def send(server, method, path, body=None, headers=None):
    """Return (status, headers, body) of one request, by default with token, Host and content type."""
    given = {"content-type": "application/json", **(headers or {})}
    if server.token is not None:
        given = {"authorization": f"Bearer {server.token}", **given}
    status, found, content = request(server, method, path, body, {"cookie": None, **given})
    return status, {name.lower(): value for name, value in found.items()}, content


def post(server, path, record, **headers):
    """Return (status, headers, body) of a JSON request."""
    return send(server, "POST", path, json.dumps(record).encode(), headers)


def error_of(answer):
    """Return (status, message) of an error in OpenAI's layout."""
    status, _, body = answer
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return status, error["message"]
