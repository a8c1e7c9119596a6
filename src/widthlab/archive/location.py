"""Where an archive lies: a folder, or a bucket of an S3-compatible store."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from widthlab.errors import WidthlabError
from widthlab.study import Study

if TYPE_CHECKING:
    import icechunk

SCHEME = "s3://"
OPTIONS = ("endpoint", "region")
"""What an address may say after its `?`; the environment's AWS_… say it otherwise."""
DEFAULT_REGION = "us-east-1"


@dataclass(frozen=True)
class Location:
    """The place of an archive, and the file whose lock its writers hold."""

    address: str
    """A folder, or `s3://bucket/prefix?endpoint=https://…&region=…`."""
    lock: Path

    @classmethod
    def of(cls, study: Study) -> Location:
        """Return where a study's archive is."""
        results = Path(study.results)
        address = study.archive or str(results / "archive")
        if address.startswith(SCHEME):
            return cls(address, results / "archive.lock")
        return cls(address, Path(address).with_name(f"{Path(address).name}.lock"))

    @property
    def folder(self) -> Path | None:
        """The folder of a local archive, None for one in a bucket."""
        return None if self.address.startswith(SCHEME) else Path(self.address)

    def storage(self) -> icechunk.Storage:
        """Return Icechunk's storage here.

        Credentials are those of the usual AWS variables or files. Raises WidthlabError where an
        address names no bucket or an unknown option.
        """
        import icechunk

        if self.folder is not None:
            return icechunk.local_filesystem_storage(str(self.folder))
        parts = urlsplit(self.address)
        options = dict(parse_qsl(parts.query))
        unknown = sorted(set(options) - set(OPTIONS))
        if not parts.netloc or unknown:
            problem = f"has the unknown option {unknown[0]!r}" if unknown else "names no bucket"
            raise WidthlabError(
                f"archive: {self.address} {problem}; write s3://bucket/prefix, and after a '?' "
                f"{' and '.join(OPTIONS)} as needed, joined by '&'"
            )
        environment = os.environ
        endpoint = (
            options.get("endpoint")
            or environment.get("AWS_ENDPOINT_URL_S3")
            or environment.get("AWS_ENDPOINT_URL")
        )
        return icechunk.s3_storage(
            bucket=parts.netloc,
            prefix=parts.path.strip("/") or None,
            region=options.get("region")
            or environment.get("AWS_REGION")
            or environment.get("AWS_DEFAULT_REGION")
            or DEFAULT_REGION,
            endpoint_url=endpoint,
            allow_http=endpoint is not None and endpoint.startswith("http://"),
            # Stores other than Amazon's seldom have a host name for each bucket.
            force_path_style=endpoint is not None,
            from_env=True,
        )
