"""Requests to SGLang's HTTP server, and what their failures mean."""

from __future__ import annotations

import http.client
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson

from hs_capture.errors import ConfigError, FormatError, HsCaptureError
from hs_capture.extract.answer import Answer, answer_of
from hs_capture.format.record import parse_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NOT_TAKEN = 503
"""The server, or a router before it, does not take requests now."""
_BROKEN = (502, 504)
"""What is before the server has lost it, with the request."""
_ROW_REFUSED = (400, 413, 422)
"""Too long, too large, or made of what the server does not know: another row may be taken."""

LONGEST_SILENCE = 600.0
"""Seconds."""
_FOR_EVER = 1e7
"""Seconds; sockets take no time-out that is much longer."""


class ServerGoneError(HsCaptureError):
    """Nobody answers at the address, or the connection broke: the server may come back."""


class NobodyError(ServerGoneError):
    """Nobody listens at the address, or takes requests there: nobody has had this one."""


class RefusedError(HsCaptureError):
    """The server does not take this request, and will not take it the next time."""


class RowRefusedError(RefusedError):
    """The server does not take a request with this prompt; it may take another prompt."""


class ServerError(HsCaptureError):
    """The server failed at this request; another time it may not."""


class Client:
    """The server at one address. May be used by several threads at once."""

    def __init__(self, url: str, timeout: float = LONGEST_SILENCE) -> None:
        """`timeout` is the longest silence of the server in seconds; then it counts as gone."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"server {url!r}: expected an address such as http://127.0.0.1:30000")
        self.url = url.rstrip("/")
        self._host, self._port, self._base = parts.hostname, parts.port, parts.path.rstrip("/")
        secure = parts.scheme == "https"
        self._connection: type[http.client.HTTPConnection] = (
            http.client.HTTPSConnection if secure else http.client.HTTPConnection
        )
        self._timeout = min(timeout, _FOR_EVER)

    def prefill(self, input_ids: NDArray[np.int64], rid: str) -> int | None:
        """Have the server compute a prompt, all of it: `extra_key` keeps its prefix cache out.

        Returns the most likely next token, None if the answer does not tell. Raises
        `ServerGoneError`, `RefusedError` or `ServerError`.
        """
        try:
            return self._generate(input_ids, rid).next_token
        except FormatError:
            # It is the capture that is wanted, and that came.
            return None

    def score(self, input_ids: NDArray[np.int64], rid: str, start: int) -> Answer:
        """As `prefill`, with the log probabilities of the tokens from `start` on.

        Raises `FormatError` as well, for an answer that is not SGLang's.
        """
        return self._generate(input_ids, rid, return_logprob=True, logprob_start_len=start)

    def _generate(self, input_ids: NDArray[np.int64], rid: str, **more: Any) -> Answer:
        answer = self._ask(
            "POST",
            "/generate",
            {
                "input_ids": input_ids.tolist(),
                "rid": rid,
                "extra_key": rid,
                "sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True},
                **more,
            },
        )
        place = f"{self.url}/generate"
        return answer_of(parse_json(answer, place), place)

    def require_answer(self, seconds: float | None = None) -> None:
        """Return if the server answers; `ServerGoneError` if it does not, within `seconds` if these
        are given."""
        try:
            self._ask("GET", "/model_info", None, seconds)
        except (RefusedError, ServerError):
            # Whatever it says, somebody is there.
            return

    def _ask(
        self, method: str, path: str, body: dict[str, Any] | None, seconds: float | None = None
    ) -> bytes:
        timeout = self._timeout if seconds is None else min(seconds, self._timeout)
        connection = self._connection(self._host, self._port, timeout=timeout)
        data = None if body is None else orjson.dumps(body)
        try:
            connection.request(
                method, self._base + path, data, {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            answer = response.read()
        except TimeoutError as error:
            raise ServerGoneError(f"{self.url}: no answer within {timeout:g} s") from error
        except ConnectionRefusedError as error:
            raise NobodyError(f"{self.url}: {error}") from error
        except (OSError, http.client.HTTPException) as error:
            raise ServerGoneError(f"{self.url}: {str(error) or type(error).__name__}") from error
        finally:
            connection.close()
        if response.status == http.client.OK:
            return answer
        said = f"{self.url} answered {response.status}: {_message(answer)}"
        if response.status == _NOT_TAKEN:
            raise NobodyError(said)
        if response.status in _BROKEN:
            raise ServerGoneError(said)
        if response.status in _ROW_REFUSED:
            raise RowRefusedError(said)
        raise (RefusedError if response.status < 500 else ServerError)(said)


def _message(answer: bytes) -> str:
    """What the server says is wrong, on one line."""
    try:
        said = orjson.loads(answer)
    except orjson.JSONDecodeError:
        said = answer.decode(errors="replace")
    while isinstance(said, dict) and ("error" in said or "message" in said):
        said = said.get("error", said.get("message"))
    return " ".join(str(said).split())[:500]
