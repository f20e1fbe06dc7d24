"""``lightning-lift configs``: lists what the package ships, and copies one."""

from pathlib import Path

import pytest

from lightning_lift.cli import main
from lightning_lift.shipped import CONFIGS, configuration, configurations


def test_lists_copies_and_never_overwrites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["configs"])
    assert capsys.readouterr().out.split() == configurations()
    name = "parameterization/pgd.yaml"
    main(["configs", name])
    assert Path(name).read_text() == (CONFIGS / name).read_text() and configuration(name) == name
    Path(name).write_text("mine")
    for wrong, message in ((name, "is there already"), ("no.yaml", "no such configuration")):
        with pytest.raises(SystemExit) as end:
            main(["configs", wrong])
        assert end.value.code == 1 and message in capsys.readouterr().err
    assert Path(name).read_text() == "mine"
