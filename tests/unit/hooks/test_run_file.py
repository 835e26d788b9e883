"""run.json grows by a norm with each change of the weights."""

from __future__ import annotations

import stat
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from capture_files import RUN, norm_weight
from hs_capture.format.run import RunInfo
from hs_capture.hooks.run_file import RunFile
from hs_capture.hooks.run_file import norm_weight as stored
from hs_capture.tensors import to_tensor


def test_norms_are_added_and_the_rest_stays(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    file = RunFile(path, 0o640, RUN)
    assert RunInfo.read(path) == RUN
    norms = {"1": norm_weight([1, 2, 3, 4]), "2": norm_weight([4, 3, 2, 1])}
    for version, norm in norms.items():
        file.add_norm(int(version), norm)
    run = RunInfo.read(path)
    assert run.norms == norms
    assert run.to_object() == RUN.to_object() | {"norms": run.to_object()["norms"]}
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_norm_that_could_not_be_written_comes_with_the_next(tmp_path: Path) -> None:
    """Until then its version has none, rather than another one's."""
    folder = tmp_path / "run"
    folder.mkdir()
    path = folder / "run.json"
    file = RunFile(path, 0o600, RUN)
    folder.rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        file.add_norm(1, norm_weight([1, 2, 3, 4]))
    (tmp_path / "away").rename(folder)
    assert RunInfo.read(path).norm_of(1) is None
    file.add_norm(2, norm_weight([4, 3, 2, 1]))
    assert RunInfo.read(path).norm_of(1) == norm_weight([1, 2, 3, 4])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_norm_of_a_model_keeps_its_bits(dtype: torch.dtype) -> None:
    weight = torch.randn(8).to(dtype)
    norm = stored(SimpleNamespace(weight=torch.nn.Parameter(weight), variance_epsilon=1e-5))
    assert to_tensor(norm.weight(), norm.dtype).equal(weight)
    assert norm.eps == 1e-5
