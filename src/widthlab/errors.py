"""The one error that people are meant to read."""


class WidthlabError(Exception):
    """A problem the user can mend.

    The message is one clear sentence (or a short list of them) that names the key, file or
    module, the value, and what to do. The command line and the Snakefile print it without a
    traceback.
    """
