from harness.node.checks import registered


def test_every_check_says_what_holds_in_one_sentence() -> None:
    for check in registered():
        said = check.function.__doc__ or ""
        assert said.endswith("."), check.name
        assert "\n" not in said.strip(), check.name
