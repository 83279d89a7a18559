"""The reference of the program: a page for each command, from `weir help`."""

from __future__ import annotations

import html
import os
import re
import subprocess
from dataclasses import dataclass, field

from pages import Heading, Page, Site, anchored


@dataclass
class Command:
    words: list[str]
    summary: str
    text: str
    group: str = ""
    topics: list["Command"] = field(default_factory=list)

    @property
    def name(self) -> str:
        return " ".join(["weir", *self.words])

    @property
    def path(self) -> str:
        return "command-" + "-".join(["weir", *self.words]) + ".html"


def ask(program: str, *arguments: str) -> str:
    # Not folded: a paragraph or an option is a line.
    environment = {**os.environ, "COLUMNS": "100000", "LC_ALL": "C.UTF-8"}
    return subprocess.run([program, "help", *arguments], env=environment, capture_output=True, text=True, check=True).stdout


def read_command(program: str, words: list[str], summary: str, group: str = "") -> Command:
    command = Command(words, summary, ask(program, *words), group)
    title = ""
    for line in command.text.split("\n"):
        heading = re.fullmatch(r"(\w+):", line)
        if heading:
            title = heading[1]
        topic = re.fullmatch(r"  ([a-z]+) {2,}(.*)", line)
        if topic and title not in ("", "Options"):
            command.topics.append(read_command(program, [*words, topic[1]], topic[2], title))
    return command


def every(command: Command) -> list[Command]:
    return [command, *(found for topic in command.topics for found in every(topic))]


def command_body(site: Site, command: Command) -> str:
    """Returns the help text as HTML."""
    body: list[str] = [f"<h1>{command.name}</h1>\n"]
    mode, paragraph = "text", []

    def flush() -> None:
        if paragraph:
            body.append(f"<p>{site.link_names(html.escape(' '.join(paragraph), quote=False), command.path)}</p>\n")
            paragraph.clear()

    def close() -> None:
        flush()
        if mode == "list":
            body.append("</dl>\n")

    for line in command.text.rstrip().split("\n"):
        usage = re.match(r"Usage: (.*)", line)
        heading = re.fullmatch(r"(\w+):", line)
        option = re.fullmatch(r"  (\S.*?) {2,}(\S.*)", line)
        choice = re.fullmatch(r" {6,}(\S+) +(\S.*)", line)
        if usage:
            body.append(f'<pre tabindex="0"><code>{html.escape(usage[1])}</code></pre>\n')
        elif heading:
            close()
            body.append(f'<h2 id="{heading[1].lower()}">{heading[1]}</h2>\n<dl>\n')
            mode = "list"
        elif mode == "list" and choice and not option:
            body.append(f"<dd><code>{html.escape(choice[1])}</code>: {html.escape(choice[2])}</dd>\n")
        elif mode == "list" and option:
            topic = next((topic for topic in command.topics if topic.words[-1] == option[1]), None)
            label = f"<code>{html.escape(option[1])}</code>"
            if topic:
                label = f'<a href="{topic.path}">{label}</a>'
            name = re.search(r"--([a-z-]+)", option[1])
            anchor = f' id="option-{name[1]}"' if name and not topic else ""
            body.append(f"<dt{anchor}>{label}</dt><dd>{html.escape(option[2])}</dd>\n")
        elif line.strip():
            if mode == "list":
                close()
                mode = "text"
            paragraph.append(line.strip())
        else:
            flush()
    close()
    return "".join(body)


def list_body(title: str, text: str, page: Page) -> str:
    """Returns `weir help environment` or `weir help settings` as HTML: names, and indented lines about them."""
    body: list[str] = [f"<h1>{title}</h1>\n"]
    is_open, used = False, set()
    lines = text.rstrip().split("\n")
    name_indent = 2 if any(re.fullmatch(r"\w[\w ,]*:", line) for line in lines) else 0
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if not line.strip():
            continue
        if indent == 0 and name_indent and line.endswith(":"):
            if is_open:
                body.append("</dl>\n")
                is_open = False
            anchor = "group-" + re.sub(r"\W+", "-", line[:-1].lower())
            used.add(anchor)
            page.headings.append(Heading(2, anchor, html.escape(line[:-1])))
            body.append(f'<h2 id="{anchor}">{html.escape(line[:-1])}</h2>\n')
        elif indent == name_indent and re.fullmatch(r"[\w, ]+", line.strip()) and (name_indent or re.fullmatch(r"\w+", line)):
            if not is_open:
                body.append("<dl>\n")
                is_open = True
            names = re.split(r", | or ", line.strip())
            for name in names:
                # Two parts of the program may read the same variable.
                body.append(f"<dt><code>{name}</code></dt>" if name in used else f'<dt id="{name}"><code>{name}</code></dt>')
                used.add(name)
            page.entries.append((names[0], line.strip(), ""))
        elif indent > name_indent and is_open:
            # The text may be folded.
            if body[-1].startswith("<dd>") and not re.match(r"\s*(Default|Values|Allowed):", line):
                body[-1] = body[-1].replace("</dd>", f" {html.escape(line.strip())}</dd>")
            else:
                body.append(f"<dd>{html.escape(line.strip())}</dd>\n")
            anchor, name, known = page.entries[-1]
            page.entries[-1] = (anchor, name, f"{known} {line.strip()}".strip())
        else:
            body.append(f"<p>{html.escape(line.strip())}</p>\n")
    if is_open:
        body.append("</dl>\n")
    return "".join(body)


def add_pages(site: Site, program: str) -> list[Command]:
    commands = every(read_command(program, [], ""))
    for command in commands:
        if command.words:
            site.symbols[command.name] = command.path
    for command in commands:
        page = Page(command.path, command.name, "")
        page.body = anchored(command_body(site, command))
        page.entries.append(("", command.name, f"{command.summary} " + re.sub(r"\s+", " ", command.text)))
        for anchor in re.findall(r'id="(option-[a-z-]+)"', page.body):
            match = re.search(rf"--{anchor[7:]}\b.*", command.text)
            page.entries.append((anchor, f"{command.name} --{anchor[7:]}", match[0] if match else ""))
        site.add(page)
    for topic, title in (("environment", "Environment variables"), ("settings", "Settings of the allocator")):
        page = Page(f"{topic}-reference.html", title, "")
        page.entries.append(("", title, f"weir help {topic}"))
        page.body = anchored(list_body(title, ask(program, topic), page))
        for anchor, name, _ in page.entries[1:]:
            for part in re.split(r", | or ", name):
                site.symbols.setdefault(part, f"{page.path}#{part}")
        site.add(page)
    return commands
