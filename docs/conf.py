"""The site, which Sphinx makes of these pages: ``scripts/docs`` builds it."""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from collage._version import __version__  # noqa: E402
from scripts.lib.reference import markdown  # noqa: E402

project = html_title = "Collage"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_site", "figures"]
html_theme = "furo"
html_show_copyright = html_copy_source = False
myst_heading_anchors = 4
autodoc_typehints = "none"  # the docstrings have types; names of NumPy and others would lead nowhere
autodoc_default_options = {"members": True, "member-order": "bysource", "undoc-members": True}


def setup(app):
    app.connect("source-read", _complete)


def _complete(app, name, source):
    """Put in what is made from the code: the reference of the command line, and the cells of notebooks.

    Links to files beside the folder of documents, which GitHub follows, become their names, and links that are named by
    a file become its title.
    """
    text = re.sub(r"\[([^]]+)\]\(\.\./(?!notes)[^)]*\)", r"\1", source[0]) if "/" not in name else source[0]
    text = re.sub(r"\[[\w/-]+\.md\](?=\([\w/-]+\.md[)#])", "[]", text).replace("<!-- commands -->\n", markdown())
    source[0] = re.sub(r"<!-- notebook (\w+) -->\n", lambda found: _cells(ROOT / f"examples/{found[1]}.ipynb"), text)


def _cells(notebook):
    parts = []
    for cell in json.loads(notebook.read_text())["cells"]:
        text = "".join(cell["source"])
        is_code = cell["cell_type"] == "code"
        parts.append(f"```python\n{text}\n```" if is_code else re.sub(r"^#", "##", text, flags=re.MULTILINE))
    return "\n\n".join(parts) + "\n"
