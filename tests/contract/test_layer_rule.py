"""The rule for a drafter's layer ids is that of each released SGLang's own source."""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

import pytest

from contract.released import read, wheel
from hs_capture.hooks.compat import TESTED_RELEASES
from hs_capture.layer_ids import internal_id, release_of, resolve_eagle3

LAYERS = 61
CONFIGS = [(2, 30, 58), (-1, 2, 30), (1, 29, 57), None]
EARLIER = ("0.5.4.post3", "0.5.9")


def setter(version: str) -> Any:
    """DeepSeek-V2's own method in the source of a release, without the imports around it."""
    tree = ast.parse(read(wheel(version), "sglang/srt/models/deepseek_v2.py"))
    (method,) = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "set_eagle3_layers_to_capture"
    )
    for argument in method.args.args:
        argument.annotation = None
    found: dict[str, Any] = {}
    exec(compile(ast.Module([method], []), version, "exec"), found)
    return found[method.name]


@pytest.mark.parametrize("version", [*EARLIER, *TESTED_RELEASES])
def test_the_rule_is_the_releases_own(version: str) -> None:
    method = setter(version)
    for ids in CONFIGS:
        model = SimpleNamespace(
            pp_group=SimpleNamespace(is_last_rank=True),
            config=SimpleNamespace(num_hidden_layers=LAYERS),
            model=SimpleNamespace(),
        )
        method(model, None if ids is None else list(ids))
        ours = resolve_eagle3(ids, release_of(version), LAYERS)
        assert list(map(internal_id, ours)) == sorted(model.model.layers_to_capture), ids
