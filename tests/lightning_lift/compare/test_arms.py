"""Arms from text and from mappings; what is wrong with one is said in one line."""

from typing import Any

import pytest

from lightning_lift.compare.arms import Arm, known_names, parse_arm, parse_arms, split_arms

NAMES = "lightning_lift.parameterizations.names"


def test_a_name_alone() -> None:
    assert parse_arm("pgd") == Arm("pgd", {"class_path": f"{NAMES}.pgd", "init_args": {}})


def test_label_arguments_and_network() -> None:
    arm = parse_arm("gain10=direct:latent_gain=1e1:network.widths=[4, 8]:network.bias_std=2")
    assert arm.label == "gain10"
    assert arm.parameterization == {"class_path": f"{NAMES}.direct", "init_args": {"latent_gain": 10.0}}
    assert arm.network == {"widths": [4, 8], "bias_std": 2}
    assert parse_arm(" lift:emit=all ").label == "lift:emit=all"


@pytest.mark.parametrize(
    ("value", "expected"), [("1e-3", 1e-3), ("null", None), ("true", True), ("{a: 1}", {"a": 1}), ("x", "x")]
)
def test_values_are_yaml(value: str, expected: Any) -> None:
    assert parse_arm(f"pgd:network.x={value}").network["x"] == expected


def test_an_arm_within_an_arm() -> None:
    arm = parse_arm("wide=direct:match_parameters=(lift:body_widths=[32,16]:emission_width=4):latent_gain=2")
    assert arm.match_parameters == parse_arm("lift:body_widths=[32,16]:emission_width=4")
    assert arm.parameterization["init_args"] == {"latent_gain": 2}
    assert parse_arm("pgd:match_parameters=lift").match_parameters == parse_arm("lift")


def test_a_mapping_is_the_same_arm() -> None:
    mapping = {
        "label": "wide",
        "class_path": "DirectSoftplus",
        "init_args": {"latent_gain": 2.0},
        "network": {"bias_std": 1.0},
        "callbacks": ["PathConditioning"],
        "match_parameters": "lift",
    }
    arm = parse_arm(mapping)
    assert arm.label == "wide" and arm.match_parameters == parse_arm("lift")
    assert arm.parameterization["class_path"] == "lightning_lift.parameterizations.direct.DirectSoftplus"
    assert arm.callbacks == ({"class_path": "PathConditioning"},)
    assert parse_arm({"class_path": "pgd"}) == parse_arm("pgd")


def test_any_parameterization_by_its_class_path() -> None:
    arm = parse_arm("mine=lightning_lift.parameterizations.ProjectedGradient:floor=0.1")
    assert arm.parameterization["init_args"] == {"floor": 0.1}


def test_every_short_name_without_arguments_is_an_arm() -> None:
    assert {"pgd", "direct", "lift"} <= known_names().keys()
    for name in known_names():
        assert parse_arm(name).label == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sgd", "no parameterization 'sgd'; known are .*direct.*lift.*pgd"),
        ("torch.nn.Linear", "no parameterization"),
        ("", "names no parameterization"),
        ("pgd:beta=1", "pgd has no argument 'beta'; its arguments are floor"),
        ("pgd:floor", "'floor' is no key=value"),
        ("direct:latent_gain=much", r"latent_gain='much' is no value of direct's latent_gain \(float\)"),
        ("lift:emit=some", "emit='some' is no value of lift's emit"),
        ("direct:latent_gain=-1", "latent_gain=-1: must be finite and positive"),
        ("lift:body_widths=[3", r"'\[' is not closed"),
        ("lift:body_widths=3]", r"'\]' closes none"),
        ("pgd:match_parameters=lift:network.widths=[3]", "leave network.widths out"),
        ("pgd:match_parameters=nothing", "no parameterization 'nothing'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse_arm(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [({"init_args": {}}, "class_path is missing"), ({"class_path": "pgd", "width": 3}, "'width' is not known")],
)
def test_a_mapping_with_other_entries(mapping: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_arm(mapping)


def test_a_list_is_split_outside_brackets() -> None:
    text = "pgd, lift:body_widths=[32,16],x=direct:match_parameters=(lift:body_widths=[8,8])"
    assert split_arms(text) == ["pgd", "lift:body_widths=[32,16]", "x=direct:match_parameters=(lift:body_widths=[8,8])"]
    assert [arm.label for arm in parse_arms(text)] == ["pgd", "lift:body_widths=[32,16]", "x"]
    with pytest.raises(ValueError, match="one of them is empty"):
        split_arms("pgd,,lift")


def test_two_arms_need_two_labels() -> None:
    with pytest.raises(ValueError, match="two arms are called 'pgd'"):
        parse_arms("pgd,pgd:floor=0.0,pgd")
    with pytest.raises(ValueError, match="no arm"):
        parse_arms([])
