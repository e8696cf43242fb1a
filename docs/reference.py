"""Pages of the site that are generated: from commands, configuration, columns, quantities, modules and the front page.

MkDocs calls the functions whose names start with ``on_`` (``hooks`` in mkdocs.yml). The others need no MkDocs.
"""

from __future__ import annotations

import ast
import html
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "olmo_sparsity"
# Page of the site -> file of the repository that it shows.
SHOWN_FILES = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "plan-hypothesis.md": "experiments/hypothesis.md",
    "plan-twin.md": "experiments/twin.md",
}
COMMANDS_MARK = "<!-- commands -->"
KEYS_MARK = "<!-- keys -->"
COLUMNS_MARK = "<!-- columns -->"
SELECTORS_MARK = "<!-- selectors -->"
QUANTITIES_MARK = "<!-- quantities -->"
# In a process of its own, as it shows the rarer options, too.
PRINT_COMMANDS = """
import typer.cli
from olmo_sparsity.cli.app import app

def unhide(command):
    for parameter in command.params:
        parameter.hidden = False
    for one in getattr(command, "commands", {}).values():
        unhide(one)

program = typer.main.get_command(app)
unhide(program)
print(typer.cli.get_docs_for_click(obj=program, ctx=typer.Context(program), name="olmo-sparsity"))
"""
PICTURE = re.compile(r'(?P<link><a [^>]*>)?(?P<image><img [^>]*?src="(?P<src>[^"]+)"[^>]*>)')


def commands_reference() -> str:
    """Return every command with its arguments and options, as Typer documents them in Markdown."""
    text = subprocess.run(
        [sys.executable, "-c", PRINT_COMMANDS], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    start = text.index("\n## ")  # before it: the application itself, which the page describes in its own words
    text = html.unescape(text[start:])
    text = text.replace("* `--help`", "* `-h, --help`")
    return re.sub(r"^(#+) `olmo-sparsity (.*)`$", r"#\1 \2", text, flags=re.MULTILINE)


def configuration_reference() -> str:
    """Return every key of the configuration with its default and its explanation, section by section."""
    from olmo_sparsity.config import Config, to_yaml

    sections = to_yaml(Config(), explain=True).strip().split("\n\n")
    names = [found[1] if (found := re.search(r"^(\w+):$", one, re.MULTILINE)) else "Experiment" for one in sections]
    return "\n".join(f"### {name}\n\n```yaml\n{one}\n```\n" for name, one in zip(names, sections, strict=True))


def columns_reference() -> str:
    """Return every table with its columns, their types and meanings."""
    from olmo_sparsity.tables import COLUMNS, ROW_MEANINGS

    blocks = []
    for table, columns in COLUMNS.items():
        lines = [
            f"### {table}",
            "",
            f"One row for {ROW_MEANINGS[table]}.",
            "",
            "| column | type | meaning |",
            "|---|---|---|",
        ]
        for column in columns:
            meaning = _in_code(column.meaning).replace("|", "\\|")
            lines.append(f"| `{column.name}` | {_type_words(column)} | {meaning} |")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def selectors_reference() -> str:
    """Return every selector with the definition of its score, whether it sees the target, and its cost."""
    from olmo_sparsity.config import InfluenceConfig
    from olmo_sparsity.selectors import SELECTORS

    settings = InfluenceConfig(k=[1, 8])
    lines = [
        "| selector | score of candidate j | sees the target | passes for 64 candidates, k up to 8 |",
        "|---|---|---|---|",
    ]
    for name, selector in sorted(SELECTORS.items(), key=lambda item: (item[1].is_control, not item[1].sees_target)):
        sees = "yes" if selector.sees_target else "no"
        lines.append(f"| `{name}` | {_in_code(selector.meaning)} | {sees} | {selector.num_evaluations(64, settings)} |")
    return "\n".join(lines) + "\n"


def quantities_reference() -> str:
    """Return every number of a measurement with its label, its unit, its definition and the keys of its rows."""
    from olmo_sparsity.statistics.quantities import QUANTITIES

    keys = {"window": "", "last": "x: n", "damped": "context, x: w", "selection": "selector, context, k"}
    lines = ["| quantity | label | definition | keys |", "|---|---|---|---|"]
    for name, quantity in QUANTITIES.items():
        cells = (f"`{name}`", _in_code(quantity.header), _in_code(quantity.definition), keys[quantity.per])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def filled_in(markdown: str) -> str:
    """Return the text of a page with what is generated in place of its marks."""
    generated = {
        COMMANDS_MARK: commands_reference,
        COLUMNS_MARK: columns_reference,
        KEYS_MARK: configuration_reference,
        SELECTORS_MARK: selectors_reference,
        QUANTITIES_MARK: quantities_reference,
    }
    for mark, reference in generated.items():
        if mark in markdown:
            markdown = markdown.replace(mark, reference())
    return markdown


def _type_words(column: Any) -> str:
    """Return the type of a column: that of the entries, for a list."""
    if not hasattr(column.type, "value_type"):
        return str(column.type)
    return f"list of {column.type.value_type}" + (", M of them or one a group" if column.name == "scores" else "")


def _in_code(text: str) -> str:
    """Escape what Markdown would read as markup, outside of code."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else re.sub(r"([*_<])", r"\\\1", part) for part in parts)


def rooms() -> list[str]:
    """Return the names of the package's folders of modules, and of its single modules."""
    single = [path.stem for path in PACKAGE.glob("*.py") if not path.stem.startswith("_")]
    return sorted([*single, *(path.parent.name for path in PACKAGE.glob("*/__init__.py"))])


def modules(room: str) -> dict[str, Path]:
    """Return the files of a room's modules by their dotted names, those of its folders, too; of a single module its own."""
    if (PACKAGE / f"{room}.py").is_file():
        return {f"olmo_sparsity.{room}": PACKAGE / f"{room}.py"}
    paths = [path for path in (PACKAGE / room).rglob("*.py") if path.stem != "__init__"]
    return {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in sorted(paths)}


def api_page(room: str) -> str:
    """Return the Markdown of a room's API page: its docstring, and a mkdocstrings block for each module."""
    blocks = [f"::: {module}\n" for module in modules(room)]
    return "\n".join([f"# {room}\n", f"{first_paragraph(room_file(room))}\n", *blocks])


def room_file(room: str) -> Path:
    """Return the file whose docstring describes a room."""
    return next(path for path in (PACKAGE / f"{room}.py", PACKAGE / room / "__init__.py") if path.is_file())


def api_overview() -> str:
    """Return the Markdown of the API's first page: every room and its modules, with their first sentences."""
    lines = [
        "# API\n",
        "The package is used from the [command line](../reference.md). These pages are for those who read or change "
        "its code, or call it from Python. [Contributing](../contributing.md) shows how the rooms fit together.\n",
    ]
    for room in rooms():
        if room == "cli":
            continue
        lines += [f"## [{room}]({room}.md)\n", f"{first_paragraph(room_file(room))}\n"]
        lines += ["| module | content |", "|---|---|"]
        for module, path in modules(room).items():
            name = module.removeprefix(f"olmo_sparsity.{room}.")
            lines.append(f"| [{name}]({room}.md#{module}) | {first_paragraph(path)} |")
        lines.append("")
    return "\n".join(lines)


def first_paragraph(module: Path) -> str:
    """Return the first paragraph of a module's docstring, without importing it."""
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.partition("\n\n")[0].split()).replace("``", "`")
    return _in_code(paragraph).replace("|", "\\|")


def with_links_of_site(text: str) -> str:
    """Turn links to files of the repository into links to the pages that show them, or into their names."""
    for page, source in SHOWN_FILES.items():
        names = "|".join(map(re.escape, (f"../{source}", source, Path(source).name)))
        text = re.sub(rf"\]\((?:{names})([#)])", rf"]({page}\1", text)
    text = re.sub(r"\]\((?:\.\./)?docs/", "](", text)
    return re.sub(r"\[([^\]]+)\]\((?:CITATION\.cff|LICENSE)\)", r"`\1`", text)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    pages = {page: (ROOT / source).read_text(encoding="utf-8") for page, source in SHOWN_FILES.items()}
    pages["api/index.md"] = api_overview()
    pages |= {f"api/{room}.md": api_page(room) for room in rooms() if room != "cli"}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in what is generated; keep an interval on one line."""
    markdown = with_links_of_site(markdown)
    return filled_in(re.sub(r"\[(-?\d+\.\d+), (-?\d+\.\d+)\]", "[\\1,\u00a0\\2]", markdown))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let every picture of a page be opened on its own, as large as it is."""
    return with_links_to_pictures(html)


def with_links_to_pictures(page: str) -> str:
    """Return a page whose pictures are links to their files, but for those that are links already."""

    def linked(found: re.Match[str]) -> str:
        if found["link"]:
            return found[0]
        return f'<a class="enlarged" href="{found["src"]}">{found["image"]}</a>'

    return PICTURE.sub(linked, page)
