from harness.node.checks import registered
from harness.node.docs import DEFAULT_PATH, render


def test_the_page_is_what_the_checks_say() -> None:
    assert DEFAULT_PATH.read_text() == render(), "run: python -m harness.node.docs"


def test_every_check_says_what_holds_in_one_sentence() -> None:
    for check in registered():
        said = check.function.__doc__ or ""
        assert said.endswith("."), check.name
        assert "\n" not in said.strip(), check.name
