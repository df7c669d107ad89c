"""The pages agree with the code and with each other. ``tests/release/test_docs.py`` runs what they show."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

import collage
import collage.testing
from scripts.lib.docs import MAN_PAGE
from scripts.lib.reference import entries, man_page, markdown

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def test_every_page_is_in_the_table_of_contents() -> None:
    listed: set[Path] = set()
    for block in re.findall(r"```\{toctree\}\n(.*?)```", text_of("index.md"), re.DOTALL):
        for line in block.splitlines():
            if not line.startswith(":"):
                found = set(DOCS.glob(f"{line}.md"))
                assert found, line
                listed |= found
    assert listed == {*DOCS.rglob("*.md")} - {DOCS / "index.md"}


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of headings, as GitHub and MyST make them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = text.replace("<!-- commands -->\n", markdown())
    for name in re.findall(r"<!-- notebook (\w+) -->", text):
        cells = json.loads((ROOT / "examples" / f"{name}.ipynb").read_text())["cells"]
        text += "\n".join("\n" + "".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if ":" in link:
            assert re.fullmatch(r"https://[\w.-]+\.\w+(/\S*)?", link), link
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_python_reference_has_all_names() -> None:
    found = re.findall(r"^\.\. (?:auto\w+|py:data):: (\w+)$", text_of("python.md"), re.MULTILINE)
    assert sorted([*found, "__version__"]) == sorted([*collage.__all__, *collage.testing.__all__])


def test_the_reference_has_all_commands_and_options() -> None:
    text = markdown()
    for each in entries():
        assert f"### {each.words}\n" in text
        assert all(f"- `{names}`: " in text for names, _ in each.options)
    assert "collage db why [OPTIONS] OPERATORS" in text


def test_the_man_page_is_that_of_these_commands() -> None:
    assert MAN_PAGE.read_text() == man_page(), "run scripts/docs --man"


def test_all_environment_variables_are_described() -> None:
    code = [path.read_text(encoding="utf-8") for path in (ROOT / "collage").rglob("*.py")]
    code += [path.read_text(encoding="utf-8") for path in (ROOT / "collage").rglob("*.h")]
    names = {name for text in code for name in re.findall(r"\"(COLLAGE_\w+)\"", text)}
    for script in ("test", "demo", "venv.sh"):
        names |= set(re.findall(r"\b(COLLAGE_\w+)\b", (ROOT / "scripts" / script).read_text(encoding="utf-8")))
    described = set(re.findall(r"\bCOLLAGE_\w+", text_of("environment.md"))) - {"COLLAGE_COMPLETE"}
    assert names == described


@cache
def texts() -> Sequence[str]:
    """All texts of the code, with a NUL for each place that is filled in."""
    return [*_texts()]


def _texts() -> Iterator[str]:
    for path in (ROOT / "collage").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.sub(r"%(\.\d+)?[sdg]", "\0", node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = (each.value if isinstance(each, ast.Constant) else "\0" for each in node.values)
                yield "".join(map(str, parts))


def messages() -> list[str]:
    return re.findall(r"^\| `([^`]+)` \|", text_of("troubleshooting.md"), re.MULTILINE)


@pytest.mark.parametrize("message", messages())
def test_a_message_is_one_of_the_program(message: str) -> None:
    parts = [each for each in message.split("...") if each.strip()]
    pattern = re.compile(".*".join(re.escape(part.strip()) for part in parts), re.DOTALL)
    assert any(pattern.search(text) for text in texts()), message


def test_there_are_messages() -> None:
    assert len(messages()) > 30


def test_the_figures_of_the_budgets_are_measured_ones() -> None:
    measured = {
        each["model"].removesuffix(".onnx"): each
        for each in json.loads((DOCS / "figures" / "real.json").read_text())["models"]
    }
    rows = re.findall(
        r"^\| [\w ]+: ([\w, ]+) \| (.*?) \| (.*?) \| (.*?) \| (.*?) \|$", text_of("budget.md"), re.MULTILINE
    )
    assert sorted(name for row in rows for name in row[0].split(", ")) == sorted(measured)
    for names, first, mix, share, ended in rows:
        models = [measured[name] for name in names.split(", ")]
        mixes = [each["first_mix_s"] for each in models if each["first_mix_s"] is not None]
        shares = [100 * each["first_mix_share"] for each in models if each["first_mix_share"] is not None]
        done = [each["compile_s"] for each in models if each["ended"] == "finished"]
        firsts = [each["first_module_s"] for each in models]
        assert first == f"{min(firsts):.1f} to {max(firsts):.1f}"
        assert mix == f"{min(mixes):.0f} to {max(mixes):.0f}, of {len(mixes)} of {len(models)}"
        assert share == f"{min(shares):.0f} to {max(shares):.0f} %"
        seconds = f", after {min(done):.0f} to {max(done):.0f} s" if done else ""
        assert ended == f"{len(done)} of {len(models)}{seconds}"
