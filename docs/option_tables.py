"""``.. option-table:: gnsqsync.Reader``: its options with their defaults, from code and docstring.

The docstring has a line for each under ``Args:``; the defaults are those of the signature.
"""

import importlib
import inspect
import re
from dataclasses import fields, is_dataclass

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList

COLUMNS = (("Option", 24), ("Default", 20), ("Meaning", 56))


def meanings_of(owner):
    """Option -> what its docstring says, in the order there; without ``**keywords``."""
    found = {}
    for section in _docstrings(owner):
        for name, text in re.findall(r"^    (\w+): (.+(?:\n        .*)*)", section, re.MULTILINE):
            found.setdefault(name, " ".join(text.split()))
    return found


def _docstrings(owner):
    for of in inspect.getmro(owner) if inspect.isclass(owner) else (owner,):
        match = re.search(r"^Args:\n((?:    .*\n?|\n)+)", inspect.getdoc(of) or "", re.MULTILINE)
        if match and of.__doc__:
            yield match[1]


def defaults_of(owner):
    """Option -> its default as the table shows it; of a class with those of its bases."""
    if is_dataclass(owner):
        made = {field.name for field in fields(owner) if callable(field.default_factory)}
        parameters = inspect.signature(owner).parameters.values()
        return {p.name: "from the host" if p.name in made else _shown(p) for p in parameters}
    found = {}
    for function in _constructors(owner):
        for parameter in list(inspect.signature(function).parameters.values()):
            if parameter.name != "self" and parameter.kind is not parameter.VAR_KEYWORD:
                found.setdefault(parameter.name, _shown(parameter))
    return found


def _constructors(owner):
    if not inspect.isclass(owner):
        return [owner]
    return [vars(of)["__init__"] for of in inspect.getmro(owner) if "__init__" in vars(of)][:-1]


def _shown(parameter):
    if parameter.default is parameter.empty:
        return "required"
    shown = repr(parameter.default)
    return "``" + re.sub(r"gnsqsync/[\d.]+\w*", "gnsqsync/<version>", shown) + "``"


class OptionTable(Directive):
    """Its argument is the full name of a class or function."""

    required_arguments = 1

    def run(self):
        owner = _named(self.arguments[0])
        defaults = defaults_of(owner)
        lines = [".. list-table::", "   :header-rows: 1", "   :class: facts"]
        lines += ["   :widths: " + " ".join(str(width) for _, width in COLUMNS), ""]
        rows = [[title for title, _ in COLUMNS]]
        for name, meaning in meanings_of(owner).items():
            rows.append([f"``{name}``", defaults[name], meaning])
        for row in rows:
            lines += [f"   * - {row[0]}", *(f"     - {cell}" for cell in row[1:])]
        holder = nodes.container()
        self.state.nested_parse(StringList(lines, self.arguments[0]), self.content_offset, holder)
        return holder.children


def _named(name):
    """The object; its module is the longest part of the name that can be imported."""
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise ValueError(f"there is no {name}")


def setup(app):
    app.add_directive("option-table", OptionTable)
    return {"parallel_read_safe": True}
