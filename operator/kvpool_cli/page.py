"""A page of an agent over an HTTP connection, however that came about."""

import http.client
from collections.abc import Callable


def read_page(
    connection: http.client.HTTPConnection, path: str, why: Callable[[http.client.HTTPException], object] = repr
) -> bytes:
    """Its body; the connection is closed. why: what to say of an answer that is no HTTP. Raises OSError with one
    sentence."""
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise OSError(f"it answered {response.status} {response.reason}")
        return response.read()
    except http.client.HTTPException as error:
        raise OSError(f"it answered no HTTP: {why(error)}") from None
    finally:
        connection.close()
