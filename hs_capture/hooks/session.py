"""The capture of one served model: from the settings to a running writer."""

from __future__ import annotations

import logging
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import hs_capture
from hs_capture.capture.batch import Batch
from hs_capture.capture.copier import Copier, DeviceCopier, HostCopier
from hs_capture.capture.launcher import WriterLauncher
from hs_capture.capture.sender import Overload
from hs_capture.capture.tap import Tap
from hs_capture.dump_dir import DumpDir
from hs_capture.errors import HsCaptureError
from hs_capture.format.metadata import layer_stream
from hs_capture.format.permissions import create_folder
from hs_capture.format.run import RunInfo
from hs_capture.hooks import finish, metrics
from hs_capture.hooks.compat import DECODE_MODE, Ranks
from hs_capture.hooks.config_digest import config_digest
from hs_capture.hooks.families import without_others
from hs_capture.hooks.guard import Guard
from hs_capture.hooks.installed import wrapped
from hs_capture.hooks.lineage import Lineage, obstacle
from hs_capture.hooks.model import Attachment
from hs_capture.hooks.requests import RequestBook
from hs_capture.hooks.run_file import RunFile, norm_weight
from hs_capture.hooks.served_weights import ServedWeights
from hs_capture.ring.message import StreamSpec
from hs_capture.ring.producer import Producer
from hs_capture.settings import Settings, writer_environ
from hs_capture.writer.config import TOKENS, WriterConfig
from hs_capture.writer.leftovers import remove_leftovers

logger = logging.getLogger("hs_capture")

WEIGHTS_CHANGED = "weights_changed"
"""Why a record is not complete whose rows would be of several versions of the weights."""


class NotSeenError(HsCaptureError):
    """A forward pass with wanted rows ended without its states."""


@dataclass(frozen=True)
class Plan:
    """What is settled before the model is built."""

    settings: Settings
    dump_dir: DumpDir
    ranks: Ranks
    sglang_version: str
    door: str
    notes: tuple[str, ...]
    metrics_name: str | None
    """The name of the model in SGLang's metrics; None when they are off."""


class Session:
    """Follows each batch of the served model from its preparation to its states."""

    def __init__(self, runner: Any, plan: Plan, attachment: Attachment, guard: Guard) -> None:
        """Begin to follow `runner`; a rank that writes also gets a run directory and a writer.

        Raises:
            ConfigError, OSError: the run cannot be started.
        """
        self.runner = runner
        self._attachment = attachment
        self._guard = guard
        self._weights = ServedWeights()
        self._follows_decode = plan.settings.follows_decode
        self._book = RequestBook(
            plan.settings.rids,
            self._weights,
            self._adapter_name,
            follows_decode=self._follows_decode,
        )
        self._token_ids: torch.Tensor | None = None
        self._decodes = False
        self._batch: Batch | None = None
        self._taken = False
        self._reused = False
        self._run_file: RunFile | None = None
        # A trainer may send a model in hundreds of pieces, each a change of its own. So a norm is
        # written when there are rows to read with it.
        self._norm_is_new = False
        self._lineage: Lineage | None = None
        self._tap: Tap | None = None
        self._producer: Producer | None = None
        if plan.ranks.holds_full_rows:
            if self._follows_decode:
                finish.watch(self._finished)
            self._start_run(plan)
        attachment.wants_batch = self._wants_batch
        attachment.receive = self._receive

    def snapshot(self, schedule_batch: Any) -> Batch:
        """Return whose rows the forward pass being prepared computes."""
        if self._lineage is not None:
            with self._guard("looking at the prefix cache"):
                self._lineage.judge(schedule_batch)
        return self._book.snapshot(schedule_batch)

    def begin_weights_change(self) -> None:
        """Say that nothing has rows until the weights are whole again."""
        self._weights.begin_change()
        self._break_off()

    def weights_loaded(self, cache_is_empty: bool) -> None:
        """Say that weights were loaded: all of them, or some during a change of several calls."""
        self._weights.stale_cache = not cache_is_empty
        if not self._weights.changing:
            self.change_weights()

    def change_weights(self) -> None:
        """Say that the weights are others from now on. What is open is of the earlier ones."""
        self._weights.change()
        self._break_off()
        self._norm_is_new = True
        if self._tap is not None:
            logger.info("hs-capture: the weights were changed: version %d", self._weights.version)

    def _write_norm(self) -> None:
        """Add the norm of the weights to run.json; the next batch tries again if that fails."""
        if self._run_file is not None:
            with self._guard("adding a norm to run.json"):
                self._run_file.add_norm(
                    self._weights.version, norm_weight(self._attachment.model.norm)
                )
                self._norm_is_new = False

    def _break_off(self) -> None:
        if self._lineage is not None:
            self._lineage.forget()
        if self._tap is not None:
            self._tap.break_off(WEIGHTS_CHANGED)

    def begin(
        self, batch: Batch | None, token_ids: torch.Tensor | None = None, mode: str = ""
    ) -> None:
        """Say which batch runs from now on; None for one that was never announced.

        `token_ids` is what it is computed of, one integer a row; `mode` is SGLang's forward mode.
        """
        if batch is not None:
            batch = self._without_mixed(batch)
        self._batch = batch
        self._token_ids = token_ids
        self._decodes = mode == DECODE_MODE
        self._taken = False
        self._attachment.begin_pass()
        gone = self._book.take_gone()
        if self._tap is not None:
            if self._reused:
                self._tap.protect()
                self._reused = False
            if gone:
                self._tap.forget(gone)
        if batch is not None and batch.rows and self._norm_is_new:
            self._write_norm()

    def follow(self, forward_batch: Any) -> None:
        """Say which slots of the KV cache the batch writes, after `begin`."""
        if self._tap is not None and self._lineage is not None:
            self._tap.lineage = {}
            self._tap.lineage = self._lineage.follow(forward_batch, self._batch)

    def end(self, returned: bool = True) -> None:
        """Say that the batch has run. Wanted rows that did not come by are recorded as lost.

        `returned` says that the pass did not raise.
        """
        if returned and self._decodes and not self._taken:
            with self._guard("taking what a decode graph has left"):
                self._take_replayed()
        self._producer_count("hook_microseconds", self._guard.take_microseconds())
        batch, self._batch = self._batch, None
        self._token_ids = None
        if batch is None or self._taken or not batch.rows or self._tap is None:
            return
        self._tap.lose(batch, "hook_error")
        self._guard.fault(
            "following a batch",
            NotSeenError(
                f"{batch.total_rows} rows were computed, but their states did not pass by"
            ),
        )

    def _finished(self, req: Any) -> None:
        """Close the record of a request that SGLang says is finished."""
        with self._guard("closing a request"):
            request = self._book.known(req)
            if request is None or not request.generates or self._tap is None:
                return
            # Without a single token the prompt need not be computed either.
            self._tap.finish(request, req.output_ids, None if req.output_ids else "aborted")

    def _without_mixed(self, batch: Batch) -> Batch:
        """Return the batch without the rows that no one version of the weights computes."""
        if self._weights.changing and batch.total_rows:
            self._weights.stale_cache = True
        pure, mixed = batch.divided(lambda rows: rows.request.mixes_weights)
        if mixed.rows and self._tap is not None:
            self._tap.lose(mixed, WEIGHTS_CHANGED)
        return pure

    def _adapter_name(self, lora_id: str) -> str:
        adapters = self.runner.lora_manager.lora_refs
        known = adapters.get(lora_id)
        return lora_id if known is None or known.lora_name is None else str(known.lora_name)

    def _wants_batch(self) -> bool | None:
        return None if self._batch is None else bool(self._batch.rows)

    def _receive(self, states: list[torch.Tensor], post_norm: torch.Tensor, reused: bool) -> None:
        batch = self._batch
        if batch is None or not batch.rows or self._tap is None:
            return
        if "post_norm" in self._final:
            states = [*states, post_norm]
        if self._follows_decode:
            states = [self._tokens_of(post_norm), *states]
        # First, for a capture that fails may have begun to read.
        self._reused = reused
        self._tap.capture(batch, states)
        self._taken = True
        self._producer_count("batches")

    def _tokens_of(self, states: torch.Tensor) -> torch.Tensor:
        """Return the token ids that the rows of a batch are of, int64 [rows, 1].

        Those of a prompt are known already, so a model that gets embeddings in their place may have
        none.
        """
        if self._token_ids is None:
            return states.new_zeros((len(states), 1), dtype=torch.int64)
        # Some samplers give 32 bits.
        return self._token_ids.to(torch.int64).unsqueeze(1)

    def _take_replayed(self) -> None:
        """Take the states of a decode batch that ran as the replay of a graph.

        The tokens are those that the graph was replayed with: were the states of another pass, so
        would they be.
        """
        left = self._attachment.replayed_decode()
        if left is not None:
            self._token_ids, (*states, post_norm) = left
            self._receive(states, post_norm, reused=True)

    def _start_run(self, plan: Plan) -> None:
        self._final = plan.settings.final
        dtype = str(self.runner.model_config.dtype).removeprefix("torch.")
        remove_leftovers(plan.dump_dir.path)
        run_dir, info = _create_run(plan, self._attachment, dtype, self.runner.server_args)
        self._run_file = RunFile(run_dir / "run.json", plan.dump_dir.file_mode, info)
        self._producer = Producer(plan.settings.buffer)
        copier = _copier(self._producer, self._attachment.model.norm.weight.device)
        config = _writer_config(plan, info, run_dir, copier)
        launcher = WriterLauncher(self._producer, config, writer_environ())
        self._tap = Tap(
            self._producer,
            launcher,
            config.streams,
            copier,
            Overload(plan.settings.on_full == "block", plan.settings.block_timeout),
            longest_prompt=self.runner.model_config.context_len,
        )
        launcher.start()
        self._lineage = Lineage(self.runner, self._note)
        self._guard.tell = self._tell_error
        if plan.metrics_name is not None:
            with self._guard("registering metrics"):
                labels = {"model_name": plan.metrics_name, "rank": info.rank}
                metrics.publish(self._producer.region.counters, labels)
        logger.info(
            "hs-capture %s attached: %s, layers %s, final %s, dir %s",
            info.hs_capture_version,
            info.model_class,
            ",".join(map(str, info.layer_ids)),
            "+".join(info.final) or "none",
            run_dir,
        )

    def _note(self, text: str) -> None:
        logger.warning("hs-capture: %s", text)
        if self._run_file is not None:
            self._run_file.add_note(text)

    def _tell_error(self, text: str, loud: bool) -> None:
        self._producer_count("hook_errors")
        if loud and self._tap is not None:
            self._tap.report(text)

    def _producer_count(self, name: str, amount: int = 1) -> None:
        if self._producer is not None:
            self._producer.count(name, amount)


def _copier(producer: Producer, device: torch.device) -> Copier:
    if device.type == "cuda":
        return DeviceCopier(producer, device)
    return HostCopier(producer)


def _writer_config(plan: Plan, info: RunInfo, run_dir: Path, copier: Copier) -> WriterConfig:
    """Return what the writer is told; the launcher adds the descriptors."""
    names = [*map(layer_stream, info.layer_ids), *(f"final.{kind}" for kind in info.final)]
    streams = [StreamSpec(name, info.dtype, info.hidden_size) for name in names]
    if plan.settings.follows_decode:
        # Beside the states, so that they cannot come apart: with overlap scheduling nobody on the
        # host knows the tokens of a pass when it begins.
        streams.insert(0, TOKENS)
    space = os.statvfs(run_dir)
    return WriterConfig(
        ring=-1,
        bell=-1,
        run_dir=str(run_dir),
        rank=info.rank,
        file_mode=plan.dump_dir.file_mode,
        reserve_bytes=plan.settings.reserve.bytes_of(space.f_blocks * space.f_frsize),
        workers=plan.settings.workers,
        server_pid=os.getpid(),
        streams=tuple(streams),
        splits_planes=copier.splits_planes,
        metadata=_capture_metadata(info),
    )


def _create_run(
    plan: Plan, attachment: Attachment, dtype: str, server_args: Any
) -> tuple[Path, RunInfo]:
    """Create the run's directory, and describe the run."""
    causal_lm, config = attachment.causal_lm, attachment.causal_lm.config
    unlinked = obstacle(server_args)
    now = time.time()
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    run_id = f"{stamp}-{os.getpid()}-{secrets.token_hex(2)}"
    info = RunInfo(
        run_id=run_id,
        rank=plan.ranks.name,
        created=now,
        hs_capture_version=hs_capture.__version__,
        sglang_version=plan.sglang_version,
        torch_version=str(torch.__version__),
        server_pid=os.getpid(),
        door=plan.door,
        model_class=type(causal_lm).__name__,
        wrapped=without_others(wrapped, attachment.family),
        architecture=(getattr(config, "architectures", None) or ["unknown"])[0],
        config_digest=config_digest(config),
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        dtype=dtype,
        layer_ids=attachment.layer_ids,
        final=plan.settings.final,
        ranks={"tp": plan.ranks.tp, "pp": plan.ranks.pp, "dp": plan.ranks.dp},
        norm=norm_weight(attachment.model.norm),
        notes=plan.notes + ((unlinked,) if unlinked is not None else ()),
        phases=plan.settings.phases,
    )
    run_dir = plan.dump_dir.path / run_id
    create_folder(run_dir, plan.dump_dir.directory_mode)
    return run_dir, info


def _capture_metadata(info: RunInfo) -> dict[str, Any]:
    """Return what every capture file says about where it comes from."""
    return {
        "run_id": info.run_id,
        "rank": info.rank,
        "layer_ids": list(info.layer_ids),
        "layer_convention": info.layer_convention,
        "final": list(info.final),
        "hidden_size": info.hidden_size,
        "dtype": info.dtype,
        "model_class": info.model_class,
        "hs_capture_version": info.hs_capture_version,
        "sglang_version": info.sglang_version,
    }
