"""HTML pages as a browser reads them."""

from html.parser import HTMLParser

VOID = {"meta", "img", "br", "link", "input"}


class Outline(HTMLParser):
    """The tags of a page in order; every tag that is opened is closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.texts = [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def all(self, name):
        return [attrs for tag, attrs in self.tags if tag == name]

    def values(self, *names):
        """The values of some attributes of all tags."""
        return [attrs[name] for _, attrs in self.tags for name in names if name in attrs]
