# SPDX-License-Identifier: GPL-2.0
"""Former names of options and verbs: they work as the new ones, and name them on stderr."""

from __future__ import annotations

import pytest

from .fakes import Run

NOTE = "mmpolicy: {} is {} now; the former name works in this version only\n"
NO_FILE = ("apply", "/no/such")


@pytest.mark.parametrize(
    ("former", "current"),
    [
        ("trim --pid 1 --least 101", "trim --pid 1 --min-empty 101"),
        ("trim --pid 1 --psi x", "trim --pid 1 --max-pressure x"),
        ("trim --pid 999 --advised", "trim --pid 999 --include-madvised"),
        ("trim --pid 999 --keep", "trim --pid 999 --bind"),
        ("bench --within 0 -- true", "bench --precision 0 -- true"),
        ("ab run --aa -1", "ab run --aa-pairs -1"),
        ("ab run --rare 99", "ab run --detect-rare 99"),
        ("ab run --saturation 7", "ab run --exposure 7"),
        ("apply --missing skip /no/such", "apply --skip-missing /no/such"),
        ("apply --broken=skip /no/such", "apply --skip-invalid /no/such"),
        ("verify --missing=skip /no/such", "verify --skip-missing /no/such"),
    ],
)
def test_a_former_option_is_the_new_one(run: Run, former: str, current: str) -> None:
    """A former option is the new one: values reach the new option, whose errors name it."""
    old, new = run(*former.split()), run(*current.split())
    (word,) = {each.split("=")[0] for each in former.split()} - {*current.split()} - {"skip"}
    (name,) = {*current.split()} - {*former.split()}
    assert old.code == new.code != 0
    assert old.err == NOTE.format(word, name) + new.err
    assert old.out == new.out


def test_the_default_of_a_former_choice(run: Run) -> None:
    """`--missing fail` is what happens without it; other words are refused."""
    old, new = run("apply", "--missing", "fail", "/no/such"), run(*NO_FILE)
    assert (old.code, old.err) == (new.code, NOTE.format("--missing", "--skip-missing") + new.err)
    assert "--missing" in run("apply", "--missing", "no", "/no/such").err


def test_the_option_of_another_program(run: Run) -> None:
    """Words after a command of bench belong to the command."""
    assert "--precision" not in run("bench", "--runs", "0", "true", "--within", "3").err


def test_the_former_verb(run: Run) -> None:
    old, new = run("host", "--cgroup", "/none"), run("thp", "--cgroup", "/none")
    assert (old.code, old.err) == (new.code, NOTE.format("host", "thp") + new.err)


def test_help_has_the_new_names_alone(run: Run) -> None:
    text = run("trim", "--help").out
    assert "--min-empty" in text and "--least" not in text
