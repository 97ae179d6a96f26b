#!/usr/bin/env python3
"""Puts tables into documents: what stands between `<!-- begin FILE -->` and `<!-- end -->` becomes the text of FILE.

usage: scripts/fill_tables.py [--check] DOCUMENT.md ...

FILE is relative to the document's folder; where it is missing, so is the table. With --check nothing is written, and the
status is 1 if a document is not what it would become.
"""

import re
import sys
from pathlib import Path

MARKED = re.compile(r"(<!-- begin (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(document: Path) -> str:
    def table(match: re.Match[str]) -> str:
        file = document.parent / match[2]
        return f"{match[1]}\n{file.read_text().strip()}\n\n{match[3]}" if file.is_file() else match[1] + match[3]

    return MARKED.sub(table, document.read_text())


def main() -> None:
    check = "--check" in sys.argv
    stale = [path for path in map(Path, sys.argv[1:]) if path.suffix == ".md" and filled(path) != path.read_text()]
    for document in stale:
        if check:
            print(f"{document} is not what its tables say; run scripts/fill_tables.py {document}", file=sys.stderr)
        else:
            document.write_text(filled(document))
    raise SystemExit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
