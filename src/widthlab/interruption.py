"""Being asked to stop: the one signal that all stages understand."""


class Interrupted(Exception):  # noqa: N818 - a request, not an error
    """A stage was asked to stop (SIGTERM), saved its state, and can be run again."""
