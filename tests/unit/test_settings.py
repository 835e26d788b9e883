"""The environment variables: what is accepted, what it means, and how a mistake is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from hs_capture.errors import ConfigError, HsCaptureError
from hs_capture.settings import VARIABLES, LayerChoice, Reserve, Settings, sglang_plugins

DIRECTORY = "/dev/shm/captures"


def settings(**variables: str) -> Settings:
    """The settings for SGLANG_HS_<name>=value of each keyword, with a dump directory."""
    environ = {f"SGLANG_HS_{name}": value for name, value in variables.items()}
    found = Settings.from_environ({"SGLANG_HS_DUMP_DIR": DIRECTORY, **environ})
    assert found is not None
    return found


@pytest.mark.parametrize("value", [None, "", " ", "\t\n  "])
def test_an_unset_empty_or_blank_directory_means_off(value: str | None) -> None:
    environ = {} if value is None else {"SGLANG_HS_DUMP_DIR": value}
    assert Settings.from_environ(environ) is None


def test_when_off_no_other_variable_is_looked_at() -> None:
    assert Settings.from_environ({"SGLANG_HS_LAYERS": "nonsense", "SGLANG_HS_TYPO": "1"}) is None


def test_the_defaults_are_those_of_the_documentation() -> None:
    assert settings() == Settings(
        dump_dir=Path(DIRECTORY),
        layers=LayerChoice("auto", ()),
        final=("pre_norm",),
        rids=None,
        on_full="block",
        block_timeout=5.0,
        reserve=Reserve(fraction=0.05),
        buffer=1024**3,
        workers=4,
    )


def test_an_empty_value_means_the_default() -> None:
    names = [name.removeprefix("SGLANG_HS_") for name in VARIABLES if "DUMP_DIR" not in name]
    assert len(names) == 9
    assert settings(**dict.fromkeys(names, "  ")) == settings()


def test_the_process_environment_is_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert Settings.from_environ() is None
    monkeypatch.setenv("SGLANG_HS_DUMP_DIR", DIRECTORY)
    monkeypatch.setenv("SGLANG_HS_WORKERS", "7")
    found = Settings.from_environ()
    assert found is not None
    assert found.workers == 7


def test_a_relative_directory_is_made_absolute_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    found = Settings.from_environ({"SGLANG_HS_DUMP_DIR": " a/../captures "})
    assert found is not None
    assert found.dump_dir == tmp_path / "captures"


def test_a_symbolic_link_is_not_resolved_away(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    found = Settings.from_environ({"SGLANG_HS_DUMP_DIR": f"{link}/"})
    assert found is not None
    assert found.dump_dir == link


def test_an_unexpanded_tilde_is_refused() -> None:
    with pytest.raises(ConfigError, match="'~' was not expanded"):
        Settings.from_environ({"SGLANG_HS_DUMP_DIR": "~/captures"})


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("auto", LayerChoice("auto", ())),
        ("1,29,57", LayerChoice("ids", (1, 29, 57))),
        (" 57 , 1,-1 ", LayerChoice("ids", (57, 1, -1))),
        ("0", LayerChoice("ids", (0,))),
        ("eagle3:2,30,58", LayerChoice("eagle3", (2, 30, 58))),
        ("eagle3: 2", LayerChoice("eagle3", (2,))),
    ],
)
def test_layers(text: str, choice: LayerChoice) -> None:
    assert settings(LAYERS=text).layers == choice


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("1,,2", "'' is no layer id"),
        ("1,2,", "'' is no layer id"),
        ("eagle3:", "'' is no layer id"),
        ("1;2", "'1;2' is no layer id"),
        ("1.5", "'1.5' is no layer id"),
        ("+1", r"'\+1' is no layer id"),
        ("1_0", "'1_0' is no layer id"),
        ("\u0661", "is no layer id"),
        ("-2", "'-2' is no layer id"),
        ("AUTO", "'AUTO' is no layer id"),
        ("eagle3:auto", "'auto' is no layer id"),
        ("1,2,1", "1 is there twice"),
        ("eagle3:4,04", "4 is there twice"),
    ],
)
def test_malformed_and_double_layers_are_refused(text: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part) as caught:
        settings(LAYERS=text)
    assert str(caught.value).startswith(f"SGLANG_HS_LAYERS={text!r} is not accepted: give ")


@pytest.mark.parametrize(
    ("text", "final"),
    [
        ("pre_norm", ("pre_norm",)),
        ("post_norm", ("post_norm",)),
        ("both", ("pre_norm", "post_norm")),
        ("none", ()),
    ],
)
def test_final(text: str, final: tuple[str, ...]) -> None:
    assert settings(FINAL=text).final == final


@pytest.mark.parametrize("text", ["prefill,decode", " prefill , decode "])
def test_generated_tokens_are_asked_for_beside_the_prompt(text: str) -> None:
    assert settings(PHASES=text).phases == ("prefill", "decode")
    assert settings(PHASES=text).follows_decode
    for prompts_alone in (settings(), settings(PHASES="prefill"), settings(PHASES="")):
        assert prompts_alone.phases == ("prefill",)
        assert not prompts_alone.follows_decode


@pytest.mark.parametrize("text", ["decode", "decode,prefill", "prefill,", "all", "Prefill"])
def test_other_phases_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"SGLANG_HS_PHASES=.*give prefill, or prefill,decode"):
        settings(PHASES=text)


def test_decode_alone_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="come with those of their prompt alone"):
        settings(PHASES="decode")


def test_rids_is_any_shell_pattern() -> None:
    assert settings(RIDS="train-[0-9]*").rids == "train-[0-9]*"


@pytest.mark.parametrize("text", ["block", "drop"])
def test_on_full(text: str) -> None:
    assert settings(ON_FULL=text).on_full == text


@pytest.mark.parametrize(("text", "seconds"), [("0", 0.0), ("2.5", 2.5), ("30", 30.0), (".5", 0.5)])
def test_block_timeout_in_seconds(text: str, seconds: float) -> None:
    assert settings(BLOCK_TIMEOUT=text).block_timeout == seconds


@pytest.mark.parametrize(
    ("text", "total", "reserved"),
    [
        ("0", 10**12, 0),
        ("4096", 10**12, 4096),
        ("3K", 10**12, 3 * 1024),
        ("2m", 10**12, 2 * 1024**2),
        ("1.5G", 10**12, 3 * 1024**3 // 2),
        ("5%", 1000, 50),
        ("12.5 %", 1000, 125),
        ("0%", 1000, 0),
    ],
)
def test_reserve_in_bytes_or_as_a_share(text: str, total: int, reserved: int) -> None:
    assert settings(RESERVE=text).reserve.bytes_of(total) == reserved


def test_reserve_says_which_of_the_two_it_is() -> None:
    assert settings(RESERVE="1K").reserve == Reserve(bytes=1024, fraction=None)
    assert settings(RESERVE="25%").reserve == Reserve(bytes=None, fraction=0.25)


@pytest.mark.parametrize(
    ("text", "size"), [("64K", 65536), ("65536", 65536), ("8G", 8 * 1024**3), ("0.5G", 2**29)]
)
def test_buffer_in_bytes(text: str, size: int) -> None:
    assert settings(BUFFER=text).buffer == size


@pytest.mark.parametrize(("text", "count"), [("1", 1), ("256", 256)])
def test_workers(text: str, count: int) -> None:
    assert settings(WORKERS=text).workers == count


@pytest.mark.parametrize(
    ("name", "text", "accepted"),
    [
        ("FINAL", "prenorm", "pre_norm, post_norm, both or none"),
        ("ON_FULL", "wait", "block or drop"),
        ("BLOCK_TIMEOUT", "-1", "seconds, 0 or more"),
        ("BLOCK_TIMEOUT", "nan", "seconds, 0 or more"),
        ("BLOCK_TIMEOUT", "inf", "seconds, 0 or more"),
        ("BLOCK_TIMEOUT", "10s", "seconds, 0 or more"),
        ("RESERVE", "100%", "a share below 100%"),
        ("RESERVE", "-1", "a share below 100%"),
        ("RESERVE", "5T", "K, M or G"),
        ("RESERVE", "5GB", "K, M or G"),
        ("RESERVE", "1.5", "K, M or G"),
        ("BUFFER", "64", "at least 64K"),
        ("BUFFER", "5%", "at least 64K"),
        ("BUFFER", "big", "at least 64K"),
        ("WORKERS", "0", "a whole number from 1 to 256"),
        ("WORKERS", "257", "a whole number from 1 to 256"),
        ("WORKERS", "2.0", "a whole number from 1 to 256"),
    ],
)
def test_a_bad_value_is_named_with_its_variable_and_what_is_accepted(
    name: str, text: str, accepted: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(**{name: text})
    message = str(caught.value)
    assert message.startswith(f"SGLANG_HS_{name}={text!r} is not accepted: give ")
    assert accepted in message
    assert "\n" not in message


def test_a_misspelled_variable_is_not_ignored() -> None:
    with pytest.raises(ConfigError) as caught:
        settings(LAYER="1,2,3")
    assert str(caught.value) == (
        "SGLANG_HS_LAYER='1,2,3' is set, but there is no such variable: "
        "did you mean SGLANG_HS_LAYERS?"
    )


def test_a_variable_like_no_other_gets_the_list() -> None:
    with pytest.raises(ConfigError, match=r"known are SGLANG_HS_DUMP_DIR, SGLANG_HS_LAYERS, "):
        settings(QQQQQQQQQQQQQQQQQQQQQQQQ="")


def test_other_variables_of_sglang_are_none_of_our_business() -> None:
    environ = {"SGLANG_HS_DUMP_DIR": DIRECTORY, "SGLANG_PLUGINS": "x", "SGLANG_HSX": "y"}
    assert Settings.from_environ(environ) == settings()


def test_config_errors_can_be_caught_as_ours_and_as_value_errors() -> None:
    with pytest.raises(HsCaptureError):
        settings(WORKERS="x")
    with pytest.raises(ValueError, match="SGLANG_HS_WORKERS"):
        settings(WORKERS="x")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (None, None),
        ("", None),
        ("a, hs_capture", ("a", "hs_capture")),
        (",", ()),
    ],
)
def test_the_plugins_that_sglang_admits(text: str | None, names: tuple[str, ...] | None) -> None:
    environ = {} if text is None else {"SGLANG_PLUGINS": text}
    assert sglang_plugins(environ) == names
