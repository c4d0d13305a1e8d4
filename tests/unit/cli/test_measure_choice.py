"""`dutyfree measure` without a name: what is measured unasked, and what is said of the rest."""

from dutyfree.cli.measure import _available, progress_console
from dutyfree.core.errors import Unavailable
from dutyfree.substrates import registry


def test_what_is_left_out_is_named_with_the_whole_command_that_enables_it(capsys):
    names = {name.partition("?")[0] for name in _available(progress_console())}
    said = capsys.readouterr().err
    assert {"host", "noop"} <= names
    for name, load in registry.drivers():
        assert (name in names) != (f"not measured: {name}: " in said)
        try:
            found = load().probe()
        except Unavailable as error:
            found = error
        if name not in names and found.enable:
            assert found.enable in said
        if getattr(found, "emulated", False):
            assert name not in names
            assert f"name it to measure it: -s {name}" in said
