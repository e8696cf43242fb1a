"""A page replaces only pages that this tool wrote."""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_up import made_up_tables

from olmo_sparsity.errors import UserError
from olmo_sparsity.storage import files
from olmo_sparsity.view import report
from olmo_sparsity.view.pages import COLOURS, check_free, minus, render, write_page
from olmo_sparsity.view.report import write_report

pytestmark = pytest.mark.usefixtures("no_charts")
GENERATOR = '<meta name="generator" content="olmo-sparsity '


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_up_tables(tmp_path_factory.mktemp("tables") / "made-up", num_documents=6)


def test_a_file_that_is_no_page_of_ours_is_never_replaced(tables: Path, tmp_path: Path) -> None:
    """Neither text, weights, parts and manifests, nor somebody else's page, whatever the name, with --overwrite or without."""
    contents = {
        "letter.txt": b"Dear reader,\n",
        "model.pt": b"PK\x03\x04" + bytes(200_000),
        "manifest.json": (tables / "manifest.json").read_bytes(),
        "part-00000.parquet": (tables / "windows" / "part-00000.parquet").read_bytes(),
        "photo.jpg": b"\xff\xd8\xff\xe0",
        "page.html": b"<!doctype html><html><title>About olmo-sparsity</title></html>",
        "empty.html": b"",
    }
    for name, content in contents.items():
        path = tmp_path / name
        path.write_bytes(content)
        for overwrite in (True, False):
            with pytest.raises(
                UserError, match=rf"{name}: this is no page that olmo-sparsity wrote, so it is not replaced"
            ):
                write_report(tables, path, overwrite=overwrite, num_windows=1)
        assert path.read_bytes() == content
    assert {path.name for path in tmp_path.iterdir()} == set(contents)


def test_a_page_that_must_stay_is_named_before_anything_is_read(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    write_page(page, f'{GENERATOR}1">', overwrite=False)
    with pytest.raises(UserError, match=r"page\.html: the file exists; --overwrite replaces it"):
        write_report(tmp_path / "no tables", page, overwrite=False)


def test_a_place_that_takes_no_page_is_named_before_anything_is_read(tmp_path: Path) -> None:
    """And nothing is left there."""
    (tmp_path / "letter.txt").write_text("Dear reader")
    for out, error, said in (
        (tmp_path / "letter.txt" / "page.html", UserError, r"letter\.txt: cannot make this folder \(File exists\)"),
        (
            tmp_path / "letter.txt" / "a" / "page.html",
            UserError,
            r"letter\.txt/a: cannot make this folder \(Not a directory\)",
        ),
        (Path("/proc/nowhere/page.html"), UserError, r"/proc/nowhere: cannot make this folder"),
        (Path("/proc/page.html"), OSError, "/proc/page.html"),
    ):
        with pytest.raises(error, match=said):
            write_report(tmp_path / "no tables", out)
    check_free(tmp_path / "new" / "page.html", overwrite=False)
    assert os.listdir(tmp_path) == ["letter.txt"]


def test_links_folders_and_pipes_are_named_and_stay(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    write_page(page, f'{GENERATOR}1">', overwrite=False)
    (tmp_path / "link.html").symlink_to(page)
    (tmp_path / "dangling.html").symlink_to(tmp_path / "nowhere.html")
    (tmp_path / "folder.html").mkdir()
    os.mkfifo(tmp_path / "pipe.html")
    for name, message in (
        ("link.html", f"symbolic link to {page}"),
        ("dangling.html", "symbolic link to"),
        ("folder.html", "this is a folder, where a file is to be written"),
        ("pipe.html", "this is a pipe or a device"),
    ):
        with pytest.raises(UserError, match=f"{name}: .*{message}"):
            write_page(tmp_path / name, "new", overwrite=True)
    assert page.read_text() == f'{GENERATOR}1">'
    assert (tmp_path / "dangling.html").is_symlink() and (tmp_path / "pipe.html").is_fifo()
    assert not (tmp_path / "nowhere.html").exists()


def test_a_page_is_known_again_by_the_name_of_its_generator(tables: Path, tmp_path: Path) -> None:
    report = write_report(tables, tmp_path / "report.html", num_windows=1)
    check_free(report, overwrite=True)
    page = report.read_text()
    assert page.index(GENERATOR) < 1000
    with pytest.raises(UserError, match="the file exists; --overwrite replaces it"):
        check_free(report, overwrite=False)
    report.write_text(re.sub(f"{GENERATOR}.*\n", "", page))
    assert GENERATOR not in report.read_text()
    with pytest.raises(UserError, match="no page"):
        check_free(report, overwrite=True)


def test_a_file_that_appears_during_the_work_is_kept(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    check_free(page, overwrite=False)
    page.write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(UserError, match="no page"):
            write_page(page, "new", overwrite=overwrite)
    assert page.read_text() == "mine"


@pytest.mark.parametrize(
    ("module", "step", "write"),
    [
        (report, "render", lambda tables, out: write_report(tables, out)),
        (files, "_sync", lambda tables, out: write_page(out, "new", overwrite=False)),
    ],
    ids=["report", "between the file's content and its name"],
)
def test_without_overwrite_no_page_that_appears_during_the_work_is_replaced(
    module: Any,
    step: str,
    write: Callable[[Path, Path], object],
    tables: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not even one that appears when all checks are done; no partial file stays beside it."""
    monkeypatch.setattr(report, "read_report", lambda measured, **given: None)
    monkeypatch.setattr(report, "render", lambda found: "new")
    page, before = tmp_path / "page.html", getattr(module, step)

    def interrupted(*args: Any, **given: Any) -> Any:
        found = before(*args, **given)
        page.write_text(f'{GENERATOR}1">')
        return found

    monkeypatch.setattr(module, step, interrupted)
    with pytest.raises(UserError, match=r"page\.html: the file exists; --overwrite replaces it"):
        write(tables, page)
    assert page.read_text() == f'{GENERATOR}1">' and list(tmp_path.iterdir()) == [page]


def test_a_page_allows_its_own_scripts_and_styles_by_their_hashes_and_nothing_else() -> None:
    """And what is no number in JSON never reaches it."""
    for scripts in ((), ("draw.js", "explore-layout.js")):
        page = render("page.html", styles=("explore.css",), scripts=scripts, data=None)
        hashes = {
            kind: " ".join(
                f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
                for text in re.findall(f"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
            )
            for kind in ("script", "style")
        }
        (policy,) = re.findall('http-equiv="Content-Security-Policy" content="([^"]*)"', page)
        assert html.unescape(policy) == (
            f"default-src 'none'; script-src {hashes['script'] if scripts else chr(39) + 'none' + chr(39)}; "
            f"style-src {hashes['style']}; base-uri 'none'; form-action 'none'"
        )
        assert '<meta name="referrer" content="no-referrer">' in page
    with pytest.raises(ValueError, match="not JSON compliant"):
        render("page.html", styles=(), scripts=(), data={"a": float("nan")})


def test_minus_signs_stand_before_numbers_only() -> None:
    assert (
        minus("-1 to (-2), k-1 and n1-2f; a - b, [-0.3, -.5]")
        == "\u22121 to (\u22122), k-1 and n1-2f; a - b, [\u22120.3, -.5]"
    )


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2.2."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Contrast ratio of WCAG 2.2."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_a_report_declares_every_colour_that_it_names(tables: Path, tmp_path: Path) -> None:
    page = write_report(tables, tmp_path / "report.html", num_windows=1).read_text()
    named = set(re.findall(r"var\(--([a-z-]+)[),]", page))
    assert {"text", "muted", "heat-share"} < named
    assert named <= set(re.findall(r"--([a-z-]+):", page))


@pytest.mark.parametrize("dark", [False, True])
def test_colours_stand_out_on_light_and_dark_pages(dark: bool) -> None:
    """Text by 4.5 (WCAG 1.4.3, AA), borders by 3 (1.4.11); backs of text are light on light pages and dark on dark ones."""
    colours = {name: pair[dark] for name, pair in COLOURS.items()}
    for name, back in (
        *itertools.product(("text", "muted", "accent"), ("page", "card")),
        *itertools.product(("text",), ("heat", "cool", "target", "good-back", "bad-back")),
        ("good", "good-back"),
        ("bad", "bad-back"),
    ):
        assert contrast(colours[name], colours[back]) >= 4.5, (name, back)
    assert contrast(colours["target-line"], colours["target"]) >= 3
    for name in ("page", "card", "line", "grid", "good-back", "bad-back", "target"):
        assert (luminance(colours[name]) < 0.2) == dark, name
