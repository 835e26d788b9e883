"""Requests to a server's ``/generate``, by token ids."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any


class RefusedError(Exception):
    """The server answered with an error status; the message holds the status and the body."""


def get(url: str, timeout: float = 120) -> bytes:
    """Return the body of a GET, or raise RefusedError."""
    return _answer(urllib.request.Request(url), timeout)


def generate(
    url: str,
    prompt: Sequence[int],
    rid: str | None = None,
    max_new_tokens: int = 1,
    timeout: float = 600,
    **fields: Any,
) -> dict[str, Any]:
    """Send one prompt, greedy, and return the answer. ``fields`` go into the request as well."""
    body = {
        "input_ids": list(prompt),
        "sampling_params": {
            "max_new_tokens": max_new_tokens,
            "temperature": 0,
            "ignore_eos": True,
        },
        **({} if rid is None else {"rid": rid}),
        **fields,
    }
    return dict(post(f"{url}/generate", body, timeout))


def generate_batch(
    url: str,
    prompts: Mapping[str, Sequence[int]],
    max_new_tokens: int = 1,
    timeout: float = 600,
) -> list[dict[str, Any]]:
    """Send all prompts (by rid) in one request, and return the answers in the same order."""
    body = {
        "input_ids": [list(prompt) for prompt in prompts.values()],
        "rid": list(prompts),
        "sampling_params": {
            "max_new_tokens": max_new_tokens,
            "temperature": 0,
            "ignore_eos": True,
        },
    }
    return list(post(f"{url}/generate", body, timeout))


def generate_concurrently(
    url: str,
    prompts: Iterable[tuple[str, Sequence[int]]],
    at_once: int,
    max_new_tokens: int = 1,
    answered: Callable[[int], None] | None = None,
    **fields: Any,
) -> dict[str, dict[str, Any]]:
    """Send each (rid, prompt) as a request of its own, ``at_once`` at a time; answers by rid.

    ``answered`` is called with the number of answers so far, from the calling thread. ``fields`` go
    into each request.
    """
    answers: dict[str, dict[str, Any]] = {}
    pool = ThreadPoolExecutor(at_once)
    try:
        futures = {
            pool.submit(generate, url, prompt, rid, max_new_tokens, **fields): rid
            for rid, prompt in prompts
        }
        for future in as_completed(futures):
            answers[futures[future]] = future.result()
            if answered is not None:
                answered(len(answers))
    finally:
        # After an interruption nobody waits for the requests that were not sent yet.
        pool.shutdown(cancel_futures=True)
    return answers


def abort(url: str, rid: str) -> None:
    """Ask the server to give up the request of this rid."""
    _answer(_json_request(f"{url}/abort_request", {"rid": rid}), timeout=120)


def post(url: str, body: object, timeout: float = 120) -> Any:
    """Send JSON and return the JSON of the answer, or raise RefusedError."""
    return json.loads(_answer(_json_request(url, body), timeout))


def _json_request(url: str, body: object) -> urllib.request.Request:
    return urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )


def _answer(request: urllib.request.Request, timeout: float) -> bytes:
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return bytes(response.read())
    except urllib.error.HTTPError as error:
        with error:
            body = error.read().decode(errors="replace")
        raise RefusedError(f"{request.full_url}: HTTP {error.code} {body}") from None
