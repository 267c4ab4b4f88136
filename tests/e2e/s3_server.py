"""A real S3 server (moto's) as a process of its own, which checks who asks, and what lies in it."""

import ssl
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError
from replica import LOOPBACK, free_port, wait_for
from store_process import StoreProcess

BUCKET, REGION = "caches", "eu-south-7"
POLICY = """{"Version": "2012-10-17", "Statement": [
  {"Effect": "Allow", "Action": ["s3:*"], "Resource": ["*"]}]}"""


class S3Server(StoreProcess):
    """One bucket on the loopback address, in memory alone."""

    def __init__(self, folder: Path, *, tls: tuple[Path, Path] | None = None) -> None:
        super().__init__(folder, free_port(), tls)
        self.client: Any = None

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}" if self._tls else f"http://{LOOPBACK}:{self.port}"

    def config(self, **fields: Any) -> dict[str, Any]:
        """An agent's `store`."""
        return {
            "type": "S3", "url": self.url, "bucket": BUCKET, "region": REGION, "prefix": "kv/",
            "credentialsFolder": str(self.credentials), **fields,
        }  # fmt: skip

    def start(self) -> "S3Server":
        command = [sys.executable, "-m", "moto.server", "--host", LOOPBACK, "--port", str(self.port)]
        if self._tls:
            command += ["--ssl", "--ssl-cert", str(self._tls[0]), "--ssl-key", str(self._tls[1])]
        self._begin(command)
        users = self._client("iam", ("first", "first"))
        made = wait_for("the store's server answers", lambda: self._user(users), 60, 0.05)
        key = made["AccessKeyId"], made["SecretAccessKey"]
        self.client = self._client("s3", key)
        self.client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
        self.credentials.mkdir(exist_ok=True)
        for name, value in zip(("accessKeyId", "secretAccessKey"), key, strict=True):
            (self.credentials / name).write_text(f"{value}\n")
        self._ask_who_comes()
        return self

    def _ask_who_comes(self) -> None:
        """From now on everybody needs a key; until here nobody did, agents that came meanwhile neither."""
        trusted = ssl.create_default_context(cafile=str(self.credentials / "ca.crt")) if self._tls else None
        asked = urllib.request.Request(f"{self.url}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"})
        with urllib.request.urlopen(asked, timeout=20, context=trusted) as answer:
            assert answer.status == 200

    @staticmethod
    def _user(users: Any) -> Any:
        try:
            users.create_user(UserName="agent")
        except BotoCoreError:
            return None
        users.put_user_policy(UserName="agent", PolicyName="all", PolicyDocument=POLICY)
        return users.create_access_key(UserName="agent")["AccessKey"]

    def _client(self, service: str, key: tuple[str, str]) -> Any:
        return botocore.session.Session().create_client(
            service,
            region_name=REGION,
            endpoint_url=self.url,
            verify=str(self.credentials / "ca.crt") if self._tls else None,
            aws_access_key_id=key[0],
            aws_secret_access_key=key[1],
            config=Config(retries={"total_max_attempts": 1}, read_timeout=10, s3={"addressing_style": "path"}),
        )

    # -- what lies there -----------------------------------------------------------------------------

    def names(self) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        return [each["Key"] for page in pages for each in page.get("Contents", ())]

    def objects(self) -> dict[str, bytes]:
        found = {}
        for name in self.names():
            with suppress(self.client.exceptions.NoSuchKey):  # an agent has removed it meanwhile
                found[name] = self.client.get_object(Bucket=BUCKET, Key=name)["Body"].read()
        return found

    def ends(self, name: str, seconds: int = 86_400) -> float:
        """When an object's life is over, in seconds since 1970. seconds: for which an agent keeps one."""
        return float(self.client.head_object(Bucket=BUCKET, Key=name)["LastModified"].timestamp() + seconds)

    def age(self, names: Sequence[str]) -> None:
        """These objects' lives end earlier than those of objects that are written from now on."""
        last = max(self.ends(name, 0) for name in names)
        wait_for("the clock goes on", lambda: time.time() >= last + 1, 20, 0.05)

    def flip(self, names: Sequence[str], place: int) -> None:
        """Flips one bit of each of these objects."""
        for name in names:
            data = bytearray(self.client.get_object(Bucket=BUCKET, Key=name)["Body"].read())
            data[place] ^= 4
            self.client.put_object(Bucket=BUCKET, Key=name, Body=bytes(data))
