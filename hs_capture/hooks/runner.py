"""Hooks on SGLang's model runner: which model is served, and which batch runs."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hs_capture.dump_dir import judge, prepare
from hs_capture.errors import ConfigError
from hs_capture.format.run import Refusal
from hs_capture.hooks import compat, model, obstacles
from hs_capture.hooks.decode_graphs import DecodeGraphs
from hs_capture.hooks.decode_obstacles import DECODE_OBSTACLES
from hs_capture.hooks.families import DEEPSEEK_V2, FAMILIES, Family
from hs_capture.hooks.guard import Guard
from hs_capture.hooks.installed import broken
from hs_capture.hooks.layers import settle_layers
from hs_capture.hooks.model import Attachment
from hs_capture.hooks.session import Plan, Session
from hs_capture.settings import Settings, dump_dir_of

Args = tuple[Any, ...]
Kwargs = dict[str, Any]

logger = logging.getLogger("hs_capture")

EXIT_REFUSED = 78
"""Exit code of a scheduler whose start we refuse: EX_CONFIG of sysexits.h."""

BATCH_ATTRIBUTE = "_hs_capture_batch"
"""Where a prepared ``ForwardBatch`` carries its snapshot to ``ModelRunner.forward``, which gets the
same object; copies that SGLang makes for the model later do not have it."""

_guard = Guard()
_session: Session | None = None


def around_load_model(
    wrapped: Callable[..., Any], instance: Any, args: Args, kwargs: Kwargs
) -> Any:
    """Wrapper of ``ModelRunner.load_model``: the one place where a server start is refused."""
    global _session
    with _refusing(None):
        dump_dir = dump_dir_of()
    with _refusing(dump_dir):
        settings = Settings.from_environ()
    if settings is None or instance.is_draft_worker:
        return wrapped(*args, **kwargs)
    with _refusing(dump_dir):
        plan = _plan(settings, instance.server_args)
    attach = functools.partial(_attach, plan, instance.server_args)
    with model.attaching(attach):
        result = wrapped(*args, **kwargs)
    with _refusing(dump_dir):
        attachment = model.attachment()
        # The module of the model may have been imported only now.
        _require_whole(DEEPSEEK_V2)
        if attachment is not None:
            _require_whole(attachment.family)
            compat.require_served_alone(instance.model, attachment.causal_lm, attachment.family)
            _session = Session(instance, plan, attachment, _guard)
        elif compat.is_last_stage():
            _require_whole(*FAMILIES)
            raise compat.unsupported(instance.model)
    return result


def around_init_new(wrapped: Callable[..., Any], _instance: Any, args: Args, kwargs: Kwargs) -> Any:
    """Wrapper of ``ForwardBatch.init_new(batch, model_runner, ...)``."""
    forward_batch = wrapped(*args, **kwargs)
    if _session is not None:
        with _guard("reading whose rows a batch has"):
            runner = args[1] if len(args) > 1 else kwargs["model_runner"]
            if runner is _session.runner:
                schedule_batch = args[0] if args else kwargs["batch"]
                setattr(forward_batch, BATCH_ATTRIBUTE, _session.snapshot(schedule_batch))
    return forward_batch


def around_forward(wrapped: Callable[..., Any], instance: Any, args: Args, kwargs: Kwargs) -> Any:
    """Wrapper of ``ModelRunner.forward(forward_batch, ...)``."""
    session = _session
    if session is None or instance is not session.runner:
        return wrapped(*args, **kwargs)
    with _guard("announcing a batch"):
        forward_batch = args[0] if args else kwargs["forward_batch"]
        batch = getattr(forward_batch, BATCH_ATTRIBUTE, None)
        session.begin(batch, forward_batch.input_ids, forward_batch.forward_mode.name)
    # Apart from the above, which may fail: no pass may write to the KV cache unseen.
    with _guard("following the KV cache"):
        session.follow(args[0] if args else kwargs["forward_batch"])
    returned = False
    try:
        result = wrapped(*args, **kwargs)
        returned = True
        return result
    finally:
        with _guard("closing a batch"):
            session.end(returned)


def weight_loads() -> int:
    """Return how often the served model was asked to load weights."""
    attachment = model.attachment()
    return 0 if attachment is None else attachment.weight_loads


def update_ends(left_empty: Callable[[], bool | None]) -> None:
    """Say that an update of the weights is over.

    `left_empty` tells whether the prefix cache is empty now, and None if no weights were changed.
    Where it fails they count as changed, and the cache as of the earlier ones.
    """
    if _session is None:
        return
    with _guard("following a change of weights"):
        emptied: bool | None = False
        try:
            emptied = left_empty()
        finally:
            if emptied is not None:
                _session.weights_loaded(emptied)


def weights_change_begins() -> None:
    """Say that the weights of the served model may be anything from now on."""
    if _session is not None:
        with _guard("stopping for a change of weights"):
            _session.begin_weights_change()


def weights_change_ends(succeeded: Callable[[], bool]) -> None:
    """Say that a change of several calls is over, and the weights are whole if it `succeeded`."""
    if _session is not None:
        with _guard("going on after a change of weights"):
            if succeeded():
                _session.change_weights()


def _plan(settings: Settings, server_args: Any) -> Plan:
    """Settle what can be settled before the model is built, in seconds rather than minutes."""
    import sglang

    import sitecustomize_shim

    _require_whole(DEEPSEEK_V2)
    follows_decode = settings.follows_decode
    notes = compat.require_release(sglang.__version__, _root(), follows_decode=follows_decode)
    host = obstacles.Host.of(server_args)
    obstacles.require_no_obstacle(host)
    if follows_decode:
        obstacles.require_no_obstacle(host, DECODE_OBSTACLES)
    if settings.on_full == "block":
        notes += obstacles.require_patience(server_args, settings.block_timeout)
    ranks = compat.ranks()
    if ranks.holds_full_rows:
        for note in notes:
            logger.warning("hs-capture: %s", note)
    return Plan(
        settings=settings,
        dump_dir=prepare(settings.dump_dir),
        ranks=ranks,
        sglang_version=sglang.__version__,
        door=sitecustomize_shim.door or "call",
        notes=notes,
        metrics_name=compat.metrics_name(server_args),
    )


def _root() -> Path:
    """Return the folder of the package ``sglang``."""
    import sglang

    return Path(inspect.getfile(sglang)).parent


def _require_whole(*families: Family) -> None:
    """Raise ConfigError if only a part of the hooks is there, which would lose rows or mix them.

    The modules of other models than these `families` do not matter.
    """
    others = {family.module_name for family in FAMILIES if family not in families}
    found = [f"{module}: {why}" for module, why in broken.items() if module not in others]
    if found:
        raise ConfigError(
            f"this SGLang cannot be wrapped ({'; '.join(found)}); use a release that "
            "docs/compatibility.md names, or unset SGLANG_HS_DUMP_DIR"
        )


def _attach(plan: Plan, server_args: Any, causal_lm: Any, family: Family) -> Attachment:
    config = causal_lm.config
    with _refusing(plan.settings.dump_dir):
        compat.require_family(plan.sglang_version, _root(), family, server_args)
        layer_ids = settle_layers(
            plan.settings.layers,
            config.num_hidden_layers,
            causal_lm.model.start_layer,
            lambda ids: compat.eagle3_rule(type(causal_lm), config, ids),
        )
        compat.require_layers(layer_ids, family.layers_hand_out_states())
        pre_norm = "pre_norm" in plan.settings.final
        modes = compat.PREFILL_MODES
        graphs = None
        if plan.settings.follows_decode:
            modes |= {compat.DECODE_MODE}
            graphs = DecodeGraphs() if obstacles.decode_backend(server_args) == "full" else None
        return Attachment(causal_lm, family, layer_ids, pre_norm, _guard, modes, graphs)


@contextlib.contextmanager
def _refusing(dump_dir: Path | None) -> Iterator[None]:
    """Stop the server's start when this block fails, and say why in one line.

    An exception would have SGLang print its traceback after the line and kill the process that
    started the server. An exit makes it say that the scheduler died, with this exit code.
    """
    try:
        yield
    except Exception as error:
        known = isinstance(error, ConfigError)
        said = str(error) if known else f"{type(error).__name__}: {error}"
        reason = " ".join(said.split())
        print(f"hs-capture: the server does not start: {reason}", file=sys.stderr, flush=True)
        if dump_dir is not None:
            _leave_refusal(dump_dir, reason)
        if multiprocessing.parent_process() is not None:
            # A scheduler that SGLang has started. With a GPU its regular end can wait for ever.
            os._exit(EXIT_REFUSED)
        raise SystemExit(EXIT_REFUSED) from None


def _leave_refusal(dump_dir: Path, reason: str) -> None:
    """Leave the reason where `verify` looks, if the dump directory is fit to be written to.

    Often it is not, and is the very reason. The line above was printed all the same.
    """
    import sglang

    refusal = Refusal(
        time=time.time(), pid=os.getpid(), sglang_version=sglang.__version__, message=reason
    )
    with contextlib.suppress(ConfigError, OSError):
        refusal.write(judge(dump_dir).path / "last-refusal.json")
