#!/bin/sh
# Builds wheel, sdist, software bill of materials, Debian package and, where there is rpmbuild, rpm into dist/; two runs
# give the same bytes.
#
# build.sh VENV [wheel]      VENV holds the build tools (group `package`); default: everything. REVISION is the packages'.
set -eu
umask 022
cd "$(dirname "$0")/.."
bin="$(cd "$1" && pwd)/bin"
what="${2:-}"
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y pyproject.toml)}"
export SOURCE_DATE_EPOCH
export LC_ALL=C TZ=UTC

rm -f dist/freezeframe-*
"$bin/python" -m build --quiet --no-isolation --outdir dist
[ "$what" = wheel ] && exit 0

version="$("$bin/python" -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])')"
python=/usr/bin/python3
root=build/tree
app="$root/opt/freezeframe"
rm -rf "$root"
mkdir -p "$app"

# The agent's own environment, from pinned hashes, run by the distribution's Python.
"$python" -m venv --without-pip "$app"
pip() { "$bin/python" -m pip --python "$app/bin/python3" install --quiet --no-compile --no-deps "$@"; }
pip --require-hashes --requirement packaging/requirements.lock
pip --no-index --find-links dist "freezeframe==$version"
rm -f "$app"/bin/activate* "$app"/bin/Activate* "$app/lib64"
rm -rf "$app/include"
sed -i "1s|^#!.*/bin/python.*|#!/opt/freezeframe/bin/python3|" $(grep -lI '^#!' "$app"/bin/*)
# Their digests are of scripts that named the directory of this build.
sed -i -E 's|^(\.\./\.\./\.\./bin/[^,]+),.*|\1,,|' "$app"/lib/python3*/site-packages/*.dist-info/RECORD
printf 'home = /usr/bin\ninclude-system-site-packages = false\nversion = %s\n' "$("$python" -c 'import platform; print(platform.python_version())')" \
    >"$app/pyvenv.cfg"
# Compiled once, and never written by the agent or by root.
"$python" -m compileall -q --invalidation-mode unchecked-hash -s "$root" -p / "$app/lib"
mkdir -p dist
"$bin/cyclonedx-py" environment --output-reproducible --of JSON --output-file dist/freezeframe-sbom.cdx.json "$app/bin/python3"

for unit in freezeframe-agentd.service freezeframe-kernel-stacks.service; do
    install -D -m 644 "packaging/systemd/$unit" "$root/usr/lib/systemd/system/$unit"
done
install -D -m 644 packaging/systemd/freezeframe.sysusers.conf "$root/usr/lib/sysusers.d/freezeframe.conf"
install -D -m 644 packaging/config/agentd.toml "$root/etc/freezeframe/agentd.toml"
install -D -m 755 packaging/capture-before-restart.sh "$root/usr/lib/freezeframe/capture-before-restart.sh"
mkdir -p "$root/usr/bin"
ln -s ../../opt/freezeframe/bin/freezeframe ../../opt/freezeframe/bin/freezeframe-agentd "$root/usr/bin/"
completion() {
    mkdir -p "$root/$(dirname "$2")"
    "$bin/freezeframe" completion "$1" >"$root/$2"
}
completion bash usr/share/bash-completion/completions/freezeframe
completion zsh usr/share/zsh/vendor-completions/_freezeframe
completion fish usr/share/fish/vendor_completions.d/freezeframe.fish
mkdir -p "$root/usr/share/man/man1"
"$bin/python" packaging/deb/man_pages.py "$root/usr/share/man/man1"
gzip -9n "$root"/usr/share/man/man1/*
install -D -m 644 LICENSE "$root/usr/share/doc/freezeframe/copyright"
install -m 644 dist/freezeframe-sbom.cdx.json "$root/usr/share/doc/freezeframe/sbom.cdx.json"
gzip -9nc CHANGELOG.md >"$root/usr/share/doc/freezeframe/changelog.gz"

minor="$("$python" -c 'import sys; print(sys.version_info.minor)')"
find "$root" -newermt "@$SOURCE_DATE_EPOCH" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +

if command -v rpmbuild >/dev/null; then
    rm -rf build/rpm
    rpmbuild -bb --quiet --define "_topdir $PWD/build/rpm" --define "_rpmdir $PWD/dist" --define '_build_name_fmt %{NVRA}.rpm' \
        --define "tree $PWD/$root" --define "version $version" --define "revision ${REVISION:-1}" --define "python 3.$minor" \
        packaging/rpm/freezeframe.spec
fi

mkdir "$root/DEBIAN"
sed -e "s/@VERSION@/$version-${REVISION:-1}/" -e "s/@ARCHITECTURE@/$(dpkg --print-architecture)/" \
    -e "s/@SIZE@/$(du -sk --apparent-size "$root" | cut -f1)/" \
    -e "s/@PYTHON@/3.$minor/" -e "s/@NEXT_PYTHON@/3.$((minor + 1))/" packaging/deb/control.in >"$root/DEBIAN/control"
echo /etc/freezeframe/agentd.toml >"$root/DEBIAN/conffiles"
install -m 755 packaging/deb/preinst packaging/deb/postinst packaging/deb/prerm packaging/deb/postrm "$root/DEBIAN/"
find "$root/DEBIAN" -exec touch --date="@$SOURCE_DATE_EPOCH" {} +
touch --date="@$SOURCE_DATE_EPOCH" "$root"
dpkg-deb --root-owner-group -Zxz --build "$root" dist/ >/dev/null
ls -1 dist
