"""Fetches the modules of wheels that hold parsers, by ranges of bytes: the wheels themselves take hundreds of megabytes each.

Usage: wheels.py FOLDER NAME==VERSION... Writes FOLDER/NAME-VERSION.zip of each that is not there yet.
"""

import io
import json
import os
import subprocess
import sys
import urllib.request
import zipfile

import dynamo
import sglang
import vllm

PATHS = {"vllm": vllm.PATHS, "sglang": sglang.PATHS, "ai-dynamo": dynamo.PATHS, "xllamacpp": (".so",)}


class Remote(io.RawIOBase):
    """A file that a server gives in ranges."""

    def __init__(self, url):
        self.url, self.at = url, 0
        _, total = self.fetch("bytes=-1")
        self.size = int(total)

    def fetch(self, range):
        with urllib.request.urlopen(urllib.request.Request(self.url, headers={"Range": range}), timeout=120) as answer:
            if answer.status != 206:
                raise OSError(f"{self.url}: the server gives no ranges")
            return answer.read(), answer.headers["Content-Range"].rsplit("/", 1)[1]

    def seekable(self):
        return True

    def readable(self):
        return True

    def tell(self):
        return self.at

    def seek(self, offset, whence=io.SEEK_SET):
        self.at = offset + (0, self.at, self.size)[whence]
        return self.at

    def readinto(self, buffer):
        size = min(len(buffer), self.size - self.at)
        if size > 0:
            buffer[:size] = self.fetch(f"bytes={self.at}-{self.at + size - 1}")[0]
            self.at += size
        return max(size, 0)


def url_of(requirement):
    """Where pip would have it from, which resolves but installs nothing."""
    command = "-m pip install --quiet --dry-run --ignore-installed --no-deps --only-binary :all: --report -".split()
    report = subprocess.run([sys.executable, *command, requirement], check=True, capture_output=True).stdout
    return json.loads(report)["install"][0]["download_info"]["url"]


def main():
    folder, *requirements = sys.argv[1:]
    for requirement in requirements:
        name, version = requirement.split("==")
        target = os.path.join(folder, f"{name}-{version}.zip")
        if os.path.exists(target):
            continue
        # By large pieces: modules that lie beside each other come together.
        wheel = zipfile.ZipFile(io.BufferedReader(Remote(url_of(requirement)), 1 << 20))
        with zipfile.ZipFile(target + ".part", "w", zipfile.ZIP_DEFLATED) as kept:
            for path in wheel.namelist():
                if any(part in path for part in PATHS[name]) and path.endswith((".py", ".so")):
                    kept.writestr(path, wheel.read(path))
        os.replace(target + ".part", target)
        print(target, flush=True)


if __name__ == "__main__":
    main()
