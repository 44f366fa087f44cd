"""Words of people and agents in a line that others show."""


def in_one_line(words: str | None, most: int) -> str:
    """Return the words as one line of at most so many characters; what is cut off is told by an ellipsis."""
    line = " ".join((words or "").split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
