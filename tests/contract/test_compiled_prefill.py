"""Where a release compiles prefill, the start is refused with the flag that this release has.

The release's own code answers, its module of CUDA graph settings, with each of its settings.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from hs_capture.errors import ConfigError
from hs_capture.hooks.cache_contract import SERVER_ARGS_FILES
from hs_capture.hooks.compat import TESTED_RELEASES
from hs_capture.hooks.contract import GRAPHS
from hs_capture.hooks.obstacles import Host, compiles_prefill, require_no_obstacle
from hs_capture.hooks.source import Source, Spread

WITHOUT_SETTINGS = TESTED_RELEASES[: TESTED_RELEASES.index("0.5.14")]
"""Releases that know compiled prefill alone, on or off."""
WITH_SETTINGS = TESTED_RELEASES[TESTED_RELEASES.index("0.5.14") :]
COMPILING = TESTED_RELEASES[TESTED_RELEASES.index("0.5.14") : TESTED_RELEASES.index("0.5.22")]
SAID = (
    r"SGLang is about to compile prefill .*; start the server with "
    r"--disable-prefill-cuda-graph \(SGLang 0\.5\.14 and newer\) "
    r"or --disable-piecewise-cuda-graph \(up to 0\.5\.13\)"
)
Load = Callable[[str], ModuleType | None]


@pytest.fixture
def load(released: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Load:
    """Put the settings module of a release in the place where it is imported from."""

    def loaded(version: str) -> ModuleType | None:
        config: list[object] = []

        def served() -> SimpleNamespace:
            return SimpleNamespace(cuda_graph_config=config[-1])

        names = ["sglang", "sglang.srt", "sglang.srt.model_executor"]
        for name in [*names, "sglang.srt.server_args", "sglang.srt.runtime_context"]:
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        context = vars(sys.modules["sglang.srt.runtime_context"])
        # Where it looks for its settings, from release to release.
        vars(sys.modules["sglang.srt.server_args"])["get_global_server_args"] = served
        context["get_server_args"] = served
        context["get_exec"] = lambda: SimpleNamespace(graph=served())
        full_name = "sglang.srt.model_executor.cuda_graph_config"
        monkeypatch.delitem(sys.modules, full_name, raising=False)
        file = released(version) / GRAPHS
        if not file.exists():
            return None
        spec = importlib.util.spec_from_file_location(full_name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, full_name, module)
        spec.loader.exec_module(module)
        vars(module)["serve_with"] = config.append
        return module

    return loaded


def require(**server_args: object) -> None:
    """Do what the start of a server does, as far as prefill is concerned."""
    args = SimpleNamespace(**server_args)
    require_no_obstacle(Host(args, True, compiles_prefill(args)))


@pytest.mark.parametrize("version", WITHOUT_SETTINGS)
def test_up_to_0_5_13_prefill_is_compiled_unless_it_is_switched_off(
    load: Load, released: Callable[[str], Path], version: str
) -> None:
    assert load(version) is None
    with pytest.raises(ConfigError, match=SAID):
        require(disable_piecewise_cuda_graph=False)
    require(disable_piecewise_cuda_graph=True)
    assert has_option(released(version), "disable_piecewise_cuda_graph")


def test_in_0_5_14_prefill_is_compiled_by_default(load: Load) -> None:
    settings = load("0.5.14")
    assert settings is not None
    settings.serve_with(settings.default_cuda_graph_config())
    with pytest.raises(ConfigError, match=SAID):
        require()


@pytest.mark.parametrize("version", COMPILING)
def test_up_to_0_5_21_it_is_compiled_where_it_is_asked_for(load: Load, version: str) -> None:
    """By ``--cuda-graph-backend-prefill tc_piecewise``; nothing else compiles it."""
    settings = load(version)
    assert settings is not None
    settings.serve_with(with_prefill(settings, "tc_piecewise"))
    with pytest.raises(ConfigError, match=SAID):
        require()


@pytest.mark.parametrize("version", ["0.5.16", "0.5.17"])
def test_in_0_5_16_and_0_5_17_it_is_compiled_for_some_multimodal_models(
    load: Load, released: Callable[[str], Path], version: str
) -> None:
    """Kimi-K2.5 is one: SGLang asks for it by itself."""
    source = Source(released(version)).read("srt/server_args.py")
    assert "is_multimodal_piecewise_cuda_graph_supported" in source
    assert "self.cuda_graph_config.prefill.backend = Backend.TC_PIECEWISE" in source
    settings = load(version)
    assert settings is not None
    settings.serve_with(with_prefill(settings, settings.Backend.TC_PIECEWISE))
    with pytest.raises(ConfigError, match=SAID):
        require()


@pytest.mark.parametrize("version", WITH_SETTINGS)
@pytest.mark.parametrize("backend", ["breakable", "disabled"])
def test_graphs_of_the_other_kind_and_none_are_fine(
    load: Load, released: Callable[[str], Path], version: str, backend: str
) -> None:
    """The flag of the message leads there."""
    settings = load(version)
    assert settings is not None
    settings.serve_with(with_prefill(settings, backend))
    require()
    assert has_option(released(version), "disable_prefill_cuda_graph")


def with_prefill(settings: ModuleType, backend: str) -> object:
    return settings.CudaGraphConfig(prefill=settings.PhaseConfig(backend=backend))


def has_option(root: Path, name: str) -> bool:
    return Spread("ServerArgs", SERVER_ARGS_FILES, (name,)).broken(Source(root)) == []
