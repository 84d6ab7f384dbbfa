"""Pictures of the documentation: each one fits the light and the dark theme."""

from __future__ import annotations

import re

from tests.support.texts import DOCS, name_of

IMAGE = re.compile(r"^ *\.\. image:: (\S+)\n((?: +:\w+:.*\n)*)", re.MULTILINE)
CLASS = re.compile(r":class: (\S+)")


def test_each_picture_fits_both_themes() -> None:
    """A picture has a dark twin, or the class ``on-white``, which the style sheet turns dark.

    Pictures of nsqadmin show both themes themselves: the wide one is light, the narrow one dark.
    """
    wrong = []
    found = 0
    for page in sorted(DOCS.rglob("*.rst")):
        pictures = {
            name: CLASS.search(options) for name, options in IMAGE.findall(page.read_text("utf-8"))
        }
        for name, match in pictures.items():
            found += 1
            theme = match[1] if match else ""
            twin = re.sub(r"(\.\w+)$", r"-dark\1", name)
            fits = (
                theme in ("on-white", "only-dark")
                or (theme == "only-light" and twin in pictures)
                or "/nsqadmin-" in name
            )
            if not fits:
                wrong.append(f"{name_of(page)}: {name}")
    assert wrong == []
    assert found > 30
