"""Whose rows a batch has: SGLang's requests as plain data."""

from __future__ import annotations

import fnmatch
import hashlib
import itertools
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from hs_capture.capture.batch import Batch, CachedPrefix, Request, batch_of
from hs_capture.hooks.compat import (
    DECODE_MODE,
    HEALTH_CHECK_PREFIX,
    PREFILL_MODES,
    extents,
    latest_extents,
)
from hs_capture.hooks.served_weights import ServedWeights
from hs_capture.settings import VERIFY_RIDS

LONGEST_RID_BYTES = 4096


class RequestBook:
    """Knows every request that is in the server now.

    A request is known by SGLang's ``Req`` object, which lives exactly as long as the request: a rid
    comes from the client and may be used again.
    """

    def __init__(
        self,
        pattern: str | None,
        weights: ServedWeights,
        adapter_name: Callable[[str], str],
        *,
        follows_decode: bool = False,
    ) -> None:
        """Requests are wanted when their rid matches the shell pattern; None wants all.

        `adapter_name` gives the name of a LoRA adapter by its id. With `follows_decode` the tokens
        that a request generates are wanted too.
        """
        self._follows_decode = follows_decode
        self._pattern = pattern
        self._weights = weights
        self._adapter_name = adapter_name
        self._keys = itertools.count()
        self._known: weakref.WeakKeyDictionary[Any, Request | None] = weakref.WeakKeyDictionary()
        self._gone: deque[int] = deque()

    def snapshot(self, schedule_batch: Any) -> Batch:
        """Return whose wanted rows the forward pass of `schedule_batch` computes.

        Taken while SGLang prepares the pass (``ForwardBatch.init_new``): later the scheduler
        changes its requests while the pass still runs.
        """
        mode = schedule_batch.forward_mode.name
        if mode == DECODE_MODE and self._follows_decode:
            # A request that is not known from its prefill is none of ours.
            return batch_of(
                (self._known.get(req), start, 1) for req, start in latest_extents(schedule_batch)
            )
        if mode not in PREFILL_MODES:
            return Batch((), 0)
        rows: list[tuple[Request | None, int, int]] = []
        prefixes: list[CachedPrefix] = []
        for place, (req, prefix, extend) in enumerate(extents(schedule_batch)):
            is_new = req not in self._known
            request = self._request(req)
            rows.append((request, prefix, extend))
            if is_new and request is not None and prefix:
                prefixes.append(CachedPrefix(request, place, prefix))
        return replace(batch_of(rows), prefixes=tuple(prefixes))

    def known(self, req: Any) -> Request | None:
        """Return a wanted request that has been in a batch."""
        return self._known.get(req)

    def take_gone(self) -> list[int]:
        """Return the keys of requests that left the server since the last call."""
        return [self._gone.popleft() for _ in range(len(self._gone))]

    def _request(self, req: Any) -> Request | None:
        if req in self._known:
            return self._known[req]
        wanted = self._is_wanted(req.rid) and not _is_refused(req) and _follows_from_its_ids(req)
        request = self._new_request(req) if wanted else None
        self._known[req] = request
        if request is not None:
            weakref.finalize(req, self._gone.append, request.key).atexit = False
        return request

    def _is_wanted(self, rid: str) -> bool:
        if rid.startswith((HEALTH_CHECK_PREFIX, VERIFY_RIDS)):
            return False
        return self._pattern is None or fnmatch.fnmatchcase(rid, self._pattern)

    def _new_request(self, req: Any) -> Request:
        # The unpadded ids are the true ones where a multimodal model puts hashes of its images
        # into the others.
        ids = req.origin_input_ids_unpadded
        if len(ids) != len(req.origin_input_ids):
            ids = req.origin_input_ids
        return Request(
            key=next(self._keys),
            rid=_stored_rid(req.rid),
            input_ids=np.array(ids, dtype=np.int64),
            cached_tokens=req.cached_tokens,
            weights_version=self._weights.version,
            mixes_weights=self._weights.are_mixed(req.cached_tokens),
            lora=None if req.lora_id is None else self._adapter_name(req.lora_id),
            generated=req.output_ids if self._is_followed(req) else None,
        )

    def _is_followed(self, req: Any) -> bool:
        # The beams of a search take each other's place: no row stays a token's of the answer.
        return self._follows_decode and getattr(req, "beam_group", None) is None


def _stored_rid(rid: str) -> str:
    """Return the rid as it is stored.

    It comes from a client. It may hold half of a surrogate pair, which no JSON and no file can, and
    be longer than anybody can mean: then its beginning and its digest stand for it.
    """
    text = rid.encode("utf-8", "backslashreplace")
    if len(text) <= LONGEST_RID_BYTES:
        return text.decode()
    begin = text[:LONGEST_RID_BYTES].decode("utf-8", "ignore")
    return f"{begin}...sha256:{hashlib.sha256(text).hexdigest()}"


def _follows_from_its_ids(req: Any) -> bool:
    """Whether the states are those of a causal pass over the token ids, as a trainer takes them.

    They are not where a client sends embeddings in place of all tokens or of some (from 0.5.11 on),
    whose ids then mean nothing, nor where several items are scored that do not see one another.
    """
    others = ("positional_embed_overrides", "multi_item_delimiter_indices")
    return req.input_embeds is None and all(getattr(req, name, None) is None for name in others)


def _is_refused(req: Any) -> bool:
    """Whether SGLang has refused the request, which is new here.

    It then computes one token in place of the prompt, so as to answer in the usual way.
    """
    return req.to_finish is not None
