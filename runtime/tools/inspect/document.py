"""A page as one file without outside resources: its head, its style sheets, its body."""

from importlib import resources

# The look that all pages share, which other sheets add to.
COMMON = "headrace.runtime.tools.inspect"


def document(title: str, body: str, *packages: str) -> str:
    """The whole file.

    Args:
        title: escaped already, as the body is.
        packages: whose `page.css` adds to the common look.
    """
    style = "".join(resources.files(package).joinpath("page.css").read_text() for package in (COMMON, *packages))
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{style}</style></head>\n<body><main>{body}</main></body></html>\n"
    )
