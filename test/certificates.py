"""Certificates for the Python tests, made by openssl: NAME.pem and NAME.key in a folder."""
import shutil
import subprocess

import pytest

HERE = "DNS:localhost,IP:127.0.0.1"


def openssl(*args, data=None):
    """What openssl says; the test is skipped where there is none."""
    if not shutil.which("openssl"):
        pytest.skip("openssl is not there, which makes the certificates")
    return subprocess.run(["openssl", *map(str, args)], input=data, capture_output=True, check=True, timeout=60).stdout


def request(folder, name, *more):
    key = folder / f"{name}.key"
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", 2, "-subj", f"/CN={name}", "-keyout", key, *more)
    return key


def authority(folder, name="ca"):
    """One that signs itself, which may be an authority or, as NAME, a server: (certificate, key)."""
    cert = folder / f"{name}.pem"
    return cert, request(folder, name, "-x509", "-addext", f"subjectAltName={HERE}", "-out", cert)


def certificate(folder, name, ca, names=""):
    """One that the authority ca signs, with a serial number of its own: (certificate, key). Its names are those of this host and
    spiffe://mesh/NAME if not given."""
    names = names or f"{HERE},URI:spiffe://mesh/{name}"
    cert, asked, extensions = (folder / f"{name}.{e}" for e in ("pem", "csr", "ext"))
    extensions.write_text(f"subjectAltName={names}\n")
    key = request(folder, name, "-out", asked)
    openssl("x509", "-req", "-in", asked, "-CA", ca[0], "-CAkey", ca[1], "-CAcreateserial", "-days", 2, "-extfile", extensions, "-out", cert)
    return cert, key


class Live:
    """A pair of files that is replaced as a whole: (cert, key), and install(pair)."""

    def __init__(self, folder):
        self.cert, self.key = folder / "live.pem", folder / "live.key"

    def install(self, pair):
        for source, target in zip(pair, (self.cert, self.key)):
            part = target.with_suffix(".part")
            shutil.copy(source, part)
            part.replace(target)
