#!/bin/sh
# A wheel for 64-bit ARM Linux, made on another kind of machine with Debian or Ubuntu. Debian's
# Python for ARM is unpacked (not installed) into build/arm64 and runs under emulation. It builds
# the wheel, so that names and tags are its own; compiler, CMake and ninja are this machine's.
# Run by `make wheel-arm64`; needs g++-aarch64-linux-gnu, qemu-user-static and the package indexes.
set -eu
cd "$(dirname "$0")/../.."
for tool in apt-get dpkg-deb aarch64-linux-gnu-g++ qemu-aarch64-static; do
  command -v $tool > /dev/null || { echo "$tool is missing"; exit 1; }
done
room=$PWD/build/arm64
root=$room/root
python=$root/usr/bin/arm64-python
PATH=$PWD/.venv/bin:$PATH
export PATH CMAKE_TOOLCHAIN_FILE="$PWD/tools/arm64/toolchain.cmake"

apt_arm64() {
  apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$room/apt" \
    -o Dir::Cache="$room/apt" -o Dir::State::status=/dev/null -o APT::Sandbox::User= "$@"
}

if [ ! -x "$python" ]; then
  mkdir -p "$room/apt/lists/partial" "$room/apt/archives/partial" "$root"
  apt_arm64 update
  apt_arm64 install --yes --download-only --no-install-recommends \
    python3-minimal libpython3-stdlib libpython3-dev libstdc++6
  for package in "$room"/apt/archives/*.deb; do dpkg-deb --extract "$package" "$root"; done
  # Python finds its files by the name it is started with, the emulator its libraries by -L.
  cat > "$python" << 'END'
#!/bin/sh
root=$(dirname "$0")/../..
exec qemu-aarch64-static -0 "$0" -L "$root" "$root/usr/bin/python3" "$@"
END
  chmod +x "$python"
fi

# This machine's pip puts packages for ARM beside it, which nothing here has to run.
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
install() {
  python -m pip install --quiet --disable-pip-version-check --upgrade --target "$site" \
    --python-version "$version" --only-binary :all: --platform linux_aarch64 \
    --platform manylinux2014_aarch64 --platform manylinux_2_28_aarch64 "$@"
}
install scikit-build-core nanobind
rm -rf "$room/wheel" dist/arm64
"$python" -c 'import sys, scikit_build_core.build as build; build.build_wheel(sys.argv[1])' \
  "$room/wheel"
python -m auditwheel repair --wheel-dir dist/arm64 "$room"/wheel/*.whl
install "$room"/wheel/*.whl
"$python" -c 'import paradecode.backends.native._core'
