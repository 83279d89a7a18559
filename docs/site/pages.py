"""Pages, their links, the navigation and the search index."""

from __future__ import annotations

import contextlib
import functools
import html
import json
import posixpath
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name, get_lexer_for_filename
from pygments.util import ClassNotFound

ROOT = Path(__file__).resolve().parents[2]
FORMATTER = HtmlFormatter(nowrap=True)


def code_html(text: str, language: str) -> str:
    """Returns highlighted code. Text in an unknown language, or in none, stays as it is."""
    try:
        lexer = get_lexer_by_name(language, stripnl=False) if language else None
    except ClassNotFound:
        lexer = None
    return (highlight(text, lexer, FORMATTER) if lexer else html.escape(text, quote=False)).rstrip("\n")


def pages_of_docs() -> list[str]:
    """Returns the pages of docs/ and compute/docs/, and of their folders, as paths in the repository."""
    return sorted(path.relative_to(ROOT).as_posix() for docs in ("docs", "compute/docs") for path in (ROOT / docs).rglob("*.md"))


def slug(text: str) -> str:
    """Returns the anchor that GitHub gives to a heading."""
    text = re.sub(r"[^\w\- ]", "", text.strip().lower())
    return text.replace(" ", "-")


def indent_code(text: str) -> str:
    """Makes code of paragraphs that are indented by two spaces, unless they belong to a list."""
    blocks = text.split("\n\n")
    for i, block in enumerate(blocks):
        is_item = re.match(r"\s*(?:- |\d+\. )", block) or (i and re.match(r"\s*(?:- |\d+\. )", blocks[i - 1]))
        if not is_item and all(line.startswith("  ") for line in block.split("\n")) and not block.startswith("    "):
            blocks[i] = "\n".join(f"  {line}" for line in block.split("\n"))
    return "\n\n".join(blocks)


def text_of(markup: str) -> str:
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", "", markup))).strip()


@dataclass
class Heading:
    level: int
    anchor: str
    markup: str


@dataclass
class Page:
    """A page of the site: its path in the site, its body, and the sections that the search finds."""

    path: str
    title: str
    body: str
    source: str = ""  # its file in the repository
    headings: list[Heading] = field(default_factory=list)
    entries: list[tuple[str, str, str]] = field(default_factory=list)  # anchor, title, text
    group: str = ""


class Site:
    def __init__(self, out: Path, is_quick: bool = False) -> None:
        self.out = out
        self.is_quick = is_quick  # for tests: the text of source files is not highlighted
        self.pages: dict[str, Page] = {}
        self.symbols: dict[str, str] = {}  # a name to the path and anchor of its description
        self.copied: dict[str, str] = {}  # a file of the repository to its copy in the site
        self.listed: dict[str, str] = {}  # pages of folders
        self.groups: list[tuple[str, list[tuple[str, str]]]] = []  # of the navigation
        self.problems: list[str] = []
        files = []
        if shutil.which("git"):
            command = ["git", "ls-files", "-co", "--exclude-standard"]
            files = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.split("\n")
        # In a source archive, which has no repository, or without git.
        self.files = sorted(file for file in files if file) or sorted(
            path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*")
            if path.is_file() and not {"build", "node_modules", "__pycache__"} & set(path.relative_to(ROOT).parts))
        self.folders = {posixpath.dirname(file) for file in self.files}
        self.markdown = MarkdownIt("commonmark").enable("table")
        self.markdown.renderer.rules["fence"] = self._fence
        self.markdown.renderer.rules["code_block"] = self._fence
        # Comments and docstrings: paragraphs, lists, code. A star is a pointer.
        self.comments = MarkdownIt("commonmark", {"html": False}).disable(
            ["emphasis", "link", "image", "autolink", "html_inline", "html_block", "heading", "lheading", "hr", "reference",
             "escape", "entity", "blockquote"])
        self.comments.renderer.rules["fence"] = self._fence
        self.comments.renderer.rules["code_block"] = self._code_of_comment

    # ---- Text ----

    def _fence(self, tokens, i, options, env) -> str:
        token = tokens[i]
        language = token.info.strip().split(" ")[0] if token.info else ""
        return f'<pre tabindex="0"><code>{code_html(token.content, language)}</code></pre>\n'

    def _code_of_comment(self, tokens, i, options, env) -> str:
        return f'<pre tabindex="0"><code>{code_html(tokens[i].content, env.get("language", ""))}</code></pre>\n'

    def comment_html(self, text: str, page: str, language: str = "c") -> str:
        text = indent_code(text)
        return self.link_names(self.comments.render(text, {"language": language}), page)

    def link_names(self, markup: str, page: str) -> str:
        """Links the names of the reference: in text, in code that consists of a name, and calls of C in blocks of code."""
        def name_link(match: re.Match) -> str:
            target = self.symbols.get(match[0])
            return f'<a href="{self.relative(target, page)}"><code>{match[0]}</code></a>' if target else match[0]

        def code_link(match: re.Match) -> str:
            target = self.symbols.get(match[0])
            return f'<a href="{self.relative(target, page)}">{match[0]}</a>' if target else match[0]

        parts = re.split(r"(<pre.*?</pre>|<code>.*?</code>|<a .*?</a>|<[^>]+>)", markup, flags=re.DOTALL)
        for i, part in enumerate(parts):
            if part.startswith("<pre"):
                parts[i] = re.sub(r"\bweir_[a-z0-9_]+\b(?![^<]*>)", code_link, part)
            elif part.startswith("<code>"):
                parts[i] = self.link_code(part, page)
            elif not part.startswith("<"):
                parts[i] = re.sub(r"\b(?:weir_[a-z0-9_]+|WEIR_[A-Z0-9_a-z]+|weir(?:::\w+)+)\b", name_link, part)
        return "".join(parts)

    def link_code(self, part: str, page: str) -> str:
        name = html.unescape(part[6:-7])
        target = self.symbols.get(re.sub(r"\(.*\)$", "", name, flags=re.DOTALL)) or self.symbols.get(name)
        if not target and name.startswith("weir::"):  # weir::buffer<T>
            target = self.symbols.get(name.partition("<")[0])
        if not target or target.split("#")[0] == page and "#" not in target:
            return part
        return f'<a href="{self.relative(target, page)}">{part}</a>'

    @staticmethod
    @functools.lru_cache(None)
    def relative(target: str, page: str) -> str:
        path, mark, anchor = target.partition("#")
        if path == page and mark:
            return f"#{anchor}"
        return posixpath.relpath(path, posixpath.dirname(page) or ".") + mark + anchor

    # ---- Pages ----

    def add(self, page: Page) -> None:
        if page.path in self.pages:
            raise ValueError(f"two pages are {page.path}")
        self.pages[page.path] = page

    @staticmethod
    def path_of(file: str) -> str:
        """Returns where a page of the repository is in the site."""
        special = {"README.md": "index.html", "docs/README.md": "contents.html", "compute/docs/README.md": "compute.html"}
        return special.get(file) or posixpath.basename(file)[:-3].lower() + ".html"

    def add_markdown(self, file: str) -> Page:
        """Adds a page of the repository. Its links are resolved later, when all pages are known."""
        tokens = self.markdown.parse((ROOT / file).read_text())
        used: dict[str, int] = {}
        page = Page(self.path_of(file), "", "", file)
        for i, token in enumerate(tokens):
            if token.type != "heading_open":
                continue
            text = "".join(part.content for part in tokens[i + 1].children if part.type in ("text", "code_inline"))
            anchor = slug(text)
            count = used.get(anchor, 0)
            used[anchor] = count + 1
            anchor += f"-{count}" if count else ""
            token.attrSet("id", anchor)
            level = int(token.tag[1])
            page.headings.append(Heading(level, anchor, self.markdown.renderer.renderInline(
                tokens[i + 1].children, self.markdown.options, {})))
            if level == 1 and not page.title:
                page.title = text
        page.body = self.markdown.renderer.render(tokens, self.markdown.options, {})
        page.title = page.title or file
        self.add(page)
        return page

    def resolve(self, page: Page) -> None:
        """Resolves the links of a page of the repository, and splits it into sections for the search."""
        folder = posixpath.dirname(page.source)

        def link(match: re.Match) -> str:
            attribute, target = match[1], html.unescape(match[2])
            if re.match(r"[a-z]+:", target):
                return match[0]
            path, mark, anchor = target.partition("#")
            if not path:
                return match[0]
            file = posixpath.normpath(posixpath.join(folder, unquote(path)))
            found = self.target_of(file, attribute in ("src", "srcset"))
            if not found:
                self.problems.append(f"{page.source}: the link {target} leads nowhere")
                return match[0]
            return f'{attribute}="{html.escape(self.relative(found, page.path) + mark + anchor)}"'

        body = re.sub(r'(href|srcset|src)="([^"]*)"', link, page.body)
        # On a forge the name of a file is a good link; here its title is.
        body = re.sub(r'(<a href="([\w-]+\.html)">)[\w-]+\.md</a>', self._titled, body)
        page.body = self.link_names(body, page.path)
        page.body = re.sub(r"<table>.*?</table>", r'<div class="wide" tabindex="0">\g<0></div>', page.body, flags=re.DOTALL)
        parts = re.split(r'<h[1-6] id="([^"]*)">(.*?)</h[1-6]>', page.body, flags=re.DOTALL)
        for anchor, title, text in zip(parts[1::3], parts[2::3], parts[3::3]):
            page.entries.append((anchor, text_of(title), text_of(text)))
        page.body = anchored(page.body)

    def _titled(self, match: re.Match) -> str:
        page = self.pages.get(match[2])
        return f"{match[1]}<cite>{html.escape(page.title)}</cite></a>" if page else match[0]

    def target_of(self, file: str, is_picture: bool = False) -> str | None:
        """Returns the page or copy of a file or folder of the repository."""
        if self.path_of(file) in self.pages and self.pages[self.path_of(file)].source == file:
            return self.path_of(file)
        if self.header_page(file) in self.pages and not is_picture:
            return self.header_page(file)
        if file in self.copied:
            return self.copied[file]
        if file in self.files:
            if is_picture or not self.is_text(file):
                self.copied[file] = f"files/{file}"
            else:
                self.add_source(file)
            return self.copied[file]
        if file in self.folders:
            return self.add_folder(file)
        return None

    @staticmethod
    def header_page(file: str) -> str:
        """Returns the page of the reference that a public header has, or ""."""
        match = re.fullmatch(r"(?:compute/)?include/weir/(compute/)?(\w+)\.(h|hpp)", file)
        return f"{'c' if match[3] == 'h' else 'cpp'}-{'compute-' if match[1] else ''}{match[2]}.html" if match else ""

    @staticmethod
    def is_text(file: str) -> bool:
        start = (ROOT / file).read_bytes()[:4096]
        return b"\0" not in start and not file.endswith((".zst", ".png", ".gz")) and (ROOT / file).stat().st_size < 1 << 20

    def add_source(self, file: str) -> str:
        """Adds a page with the text of a file."""
        path = self.copied.get(file) or f"source/{file}.html"
        if path in self.pages:
            return path
        self.copied[file] = path
        text = (ROOT / file).read_text()
        marked = html.escape(text, quote=False)
        if not self.is_quick:
            with contextlib.suppress(ClassNotFound):
                marked = highlight(text, get_lexer_for_filename(file, stripnl=False), FORMATTER)
        lines = marked.rstrip("\n").split("\n")
        body = "\n".join(f'<span class="line" id="L{number}">{line}</span>' for number, line in enumerate(lines, 1))
        page = Page(path, file, f'<h1>{html.escape(file)}</h1>\n<pre class="source" tabindex="0"><code>{body}</code></pre>\n')
        page.group = "source"
        self.add(page)
        return path

    def add_folder(self, folder: str) -> str:
        path = f"source/{folder}/index.html"
        if path in self.pages:
            return path
        self.add(Page(path, folder, "", group="source"))
        self.listed[path] = folder
        return path

    def finish_folders(self) -> None:
        """Lists the files of each folder that a page links to, with links to those that have a page."""
        for path, folder in self.listed.items():
            items = []
            for file in self.files:
                if posixpath.dirname(file) == folder:
                    header = self.header_page(file)
                    target = header if header in self.pages else self.copied.get(file)
                    name = html.escape(posixpath.basename(file))
                    items.append(f'<li><a href="{html.escape(self.relative(target, path))}">{name}</a></li>' if target
                                 else f"<li>{name}</li>")
            self.pages[path].body = f"<h1>{html.escape(folder)}</h1>\n<ul>\n" + "\n".join(items) + "\n</ul>\n"

    # ---- Output ----

    def navigation(self, page: Page) -> str:
        parts = []
        for title, links in self.groups:
            here = any(path == page.path for path, _ in links)
            rows = "".join(
                f'<li><a href="{self.relative(path, page.path)}"{current(path == page.path)}>{html.escape(text)}</a></li>'
                for path, text in links)
            parts.append(f"<details{' open' if here else ''}><summary>{html.escape(title)}</summary><ul>{rows}</ul></details>")
        return "\n".join(parts)

    @staticmethod
    def contents(page: Page) -> str:
        rows = [heading for heading in page.headings if heading.level in (2, 3)]
        if len(rows) < 2:
            return ""
        items = "".join(f'<li class="l{row.level}"><a href="#{row.anchor}">{re.sub("</?a[^>]*>", "", row.markup)}</a></li>'
                        for row in rows)
        return f'<nav class="contents" aria-label="On this page"><p>On this page</p><ul>{items}</ul></nav>'

    def write(self) -> None:
        template = (Path(__file__).parent / "page.html").read_text()
        for page in self.pages.values():
            path = self.out / page.path
            path.parent.mkdir(parents=True, exist_ok=True)
            up = posixpath.relpath(".", posixpath.dirname(page.path) or ".")
            title = page.title if page.path == "index.html" else f"{page.title} – Weir"
            values = {"title": html.escape(title), "up": up, "navigation": self.navigation(page),
                      "contents": self.contents(page), "body": page.body}
            path.write_text(re.sub(r"\{\{(\w+)\}\}", lambda match, values=values: values[match[1]], template))
        for file, target in self.copied.items():
            if target.startswith("files/"):
                (self.out / target).parent.mkdir(parents=True, exist_ok=True)
                (self.out / target).write_bytes((ROOT / file).read_bytes())
        for name in ("site.css", "site.js"):
            (self.out / name).write_bytes((Path(__file__).parent / name).read_bytes())
        light = HtmlFormatter(style="friendly").get_style_defs("pre")
        dark = HtmlFormatter(style="monokai").get_style_defs("pre")
        keep = re.compile(r"^pre \.", re.MULTILINE)
        light, dark = ("\n".join(line for line in text.split("\n") if keep.match(line)) for text in (light, dark))
        nested = re.sub(r"^pre ", ":root[data-theme=dark] pre ", dark, flags=re.MULTILINE)
        system = re.sub(r"^pre ", ":root:not([data-theme=light]) pre ", dark, flags=re.MULTILINE)
        (self.out / "code.css").write_text(f"{light}\n{nested}\n@media screen and (prefers-color-scheme: dark) {{\n{system}\n}}\n")
        rows = [[page.path + (f"#{anchor}" if anchor else ""), page.title, title, text]
                for page in self.pages.values() for anchor, title, text in page.entries]
        data = json.dumps(rows, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
        (self.out / "search-index.js").write_text(f"window.weirSearchIndex = {data};\n")


def current(is_current: bool) -> str:
    return ' aria-current="page"' if is_current else ""


def anchored(body: str) -> str:
    """Adds to each heading a link to itself."""
    return re.sub(r'<(h[2-4]) id="([^"]*)">(.*?)</\1>',
                  r'<\1 id="\2">\3 <a class="anchor" href="#\2" aria-label="link to this section">#</a></\1>', body, flags=re.DOTALL)


# ---- Checks ----


TAG = re.compile(r'<([a-z]\w*)((?:\s+[\w-]+(?:="[^"]*")?)+)\s*/?>')
ATTRIBUTE = re.compile(r'([\w-]+)="([^"]*)"')


class Links:
    """The anchors of a page, its links, and what a browser loads with it."""

    def __init__(self, text: str) -> None:
        self.anchors: list[str] = []
        self.links: list[str] = []
        self.loaded: list[str] = []
        for tag, attributes in TAG.findall(text):
            if tag == "span" and " id=" not in attributes:
                continue
            for name, value in ATTRIBUTE.findall(attributes):
                value = html.unescape(value)
                if name == "id":
                    self.anchors.append(value)
                elif name == "href" and tag == "a":
                    self.links.append(value)
                elif name in ("src", "srcset", "poster", "data", "href"):
                    self.loaded.append(value)
                elif name == "style":
                    self.loaded.extend(re.findall(r"url\(([^)]*)\)", value))


def check(out: Path) -> list[str]:
    """Returns what is wrong with a site: broken links and anchors, repeated anchors, unreachable pages, and URLs of
    other places that a browser would load."""
    problems = []
    pages: dict[str, Links] = {}
    for path in sorted(out.rglob("*.html")):
        pages[path.relative_to(out).as_posix()] = Links(path.read_text())
    anchors = {name: set(links.anchors) for name, links in pages.items()}
    reached, todo = set(), ["index.html"]
    while todo:
        name = todo.pop()
        if name in reached or name not in pages:
            continue
        reached.add(name)
        todo.extend(posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(link.split("#")[0])))
                    for link in pages[name].links if link.split("#")[0] and not re.match(r"[a-z]+:", link))
    exists = functools.lru_cache(None)(lambda target: (out / target).is_file())
    for name, links in pages.items():
        repeated = {anchor for anchor, count in Counter(links.anchors).items() if count > 1}
        problems.extend(f"{name}: the anchor {anchor} is used twice" for anchor in sorted(repeated))
        if name not in reached:
            problems.append(f"{name}: no link leads to this page")
        for link in links.links + links.loaded:
            if re.match(r"[a-z]+:|//", link):
                if link in links.loaded and not link.startswith("data:"):
                    problems.append(f"{name}: loads {link}")
                continue
            path, _, anchor = unquote(link).partition("#")
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
            if link.startswith("/") or target.startswith("..") or not exists(target):
                problems.append(f"{name}: the link {link} leads nowhere")
            elif anchor and target in pages and anchor not in anchors[target]:
                problems.append(f"{name}: {target} has no anchor {anchor}")
    for path in [*out.rglob("*.css"), *out.rglob("*.js")]:
        if path.name == "search-index.js":
            continue
        for found in re.findall(r"(?:https?:)?//[a-z]\S*|@import\S*|url\([^)]*\)", path.read_text()):
            problems.append(f"{path.relative_to(out)}: loads {found}")
    index = (out / "search-index.js").read_text()
    rows = json.loads(index[index.index("[") : index.rindex("]") + 1])
    for target, *_ in rows:
        path, _, anchor = target.partition("#")
        if path not in pages or (anchor and anchor not in anchors[path]):
            problems.append(f"search-index.js: there is no {target}")
    missing = [name for name in pages if not name.startswith("source/") and not any(row[0].split("#")[0] == name for row in rows)]
    problems.extend(f"search-index.js: {name} is missing" for name in missing)
    return problems
