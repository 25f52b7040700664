"""A real nginx on loopback that forwards everything to one server, with the hop-by-hop headers of its clients."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Self

from tests.servers.redis_servers import free_port, until
from tests.servers.starting import START_ATTEMPTS, ServerEndedError

_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
NGINX = shutil.which("nginx", path=_PATH)

_CONFIGURATION = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  upstream service {{
    server 127.0.0.1:{to_port};
    keepalive 1;
  }}
  server {{
    listen 127.0.0.1:{port};
    client_max_body_size 0;
    location / {{
      proxy_pass http://service;
      proxy_http_version 1.1;
      proxy_set_header Host $host;
      proxy_set_header Upgrade $http_upgrade;
      proxy_set_header Connection $http_connection;
    }}
  }}
}}
"""


class Nginx:
    """One nginx process. It keeps one connection to the server at `to_port`, and sends every request over it."""

    def __init__(self, folder: Path, to_port: int) -> None:
        self.folder = folder
        self.to_port = to_port
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, START_ATTEMPTS + 1):
            self.port = free_port()
            try:
                self._start()
            except ServerEndedError:
                if attempt == START_ATTEMPTS:
                    raise
            else:
                return self
        raise AssertionError

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(20)

    def _start(self) -> None:
        assert NGINX is not None, "nginx is not installed: make setup-system"
        configuration = self.folder / "nginx.conf"
        configuration.write_text(_CONFIGURATION.format(folder=self.folder, port=self.port, to_port=self.to_port))
        with (self.folder / "stderr.log").open("wb") as log:
            self._process = subprocess.Popen(
                [NGINX, "-c", configuration, "-p", self.folder], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            until(self._is_listening, "nginx")
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    def _is_listening(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise ServerEndedError((self.folder / "stderr.log").read_text())
        with socket.create_connection(("127.0.0.1", self.port), timeout=5):
            return True
