"""``.. module-table:: wire policy``: the modules of these rooms, with their docstrings' beginnings.

A room without folder, ``.``, is the flat modules. Modules are read and not imported.
"""

import ast
import re
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList

PACKAGE = Path(__file__).resolve().parents[1] / "gnsqsync"


def modules_of(room):
    """Return the paths of a room's public modules, those of its subfolders too."""
    if room == ".":
        return sorted(p for p in PACKAGE.glob("*.py") if not p.name.startswith("_"))
    return sorted(p for p in (PACKAGE / room).rglob("*.py") if not p.name.startswith("_"))


def summary_of(path):
    """Return the first sentences of the module's docstring, as RST."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    text = " ".join(text.split("\n\n")[0].split())
    text = re.sub(r"docs/protocol/[\w-]+#([\w-]+)", r":ref:`protocol-\1`", text)
    text = re.sub(r"docs/protocol/([\w-]+)", r":doc:`/protocol/\1`", text)
    return re.sub(r"\b(E)_(?= )", r"\1\\_", text)


class ModuleTable(Directive):
    """Arguments: rooms of the package."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self):
        lines = [".. list-table::", "   :header-rows: 1", "   :class: facts"]
        lines += ["   :widths: 34 66", "", "   * - Module", "     - Subject"]
        for room in self.arguments[0].split():
            for path in modules_of(room):
                name = path.relative_to(PACKAGE).with_suffix("").as_posix()
                lines += [f"   * - ``{name}``", f"     - {summary_of(path)}"]
        holder = nodes.container()
        self.state.nested_parse(StringList(lines, "module-table"), self.content_offset, holder)
        return holder.children


def setup(app):
    app.add_directive("module-table", ModuleTable)
    return {"parallel_read_safe": True}
