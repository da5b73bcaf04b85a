"""Plain HTTP requests, for what the official client does not send."""

import http.client
import json


def send(server, method, path, body=None, headers=None):
    """Return (status, headers, body) of one request, by default with token, Host and content type."""
    given = {"content-type": "application/json", **(headers or {})}
    if server.token is not None:
        given = {"authorization": f"Bearer {server.token}", **given}
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
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


def post(server, path, record, **headers):
    """Return (status, headers, body) of a JSON request."""
    return send(server, "POST", path, json.dumps(record).encode(), headers)


def error_of(answer):
    """Return (status, message) of an error in OpenAI's layout."""
    status, _, body = answer
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return status, error["message"]
