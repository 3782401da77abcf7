#!/bin/sh
# An aarch64 Python for an x86-64 machine, under an emulator: Debian's packages of it, unpacked into a folder. It needs
# Debian and qemu-aarch64 (apt-get install qemu-user), and no rights. FOLDER/root/usr/bin/emulated runs as any Python.
#
#     sh tools/arm_python.sh FOLDER       (`make test-wheel` does it)
set -eu
emulator=$(command -v qemu-aarch64) || { echo "there is no qemu-aarch64: apt-get install qemu-user" >&2; exit 1; }
mkdir -p "$1/lists/partial" "$1/packages"
here=$(cd "$1" && pwd)
cd "$here/packages"
of_arm() {
    "$@" -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root \
        -o Dir::State::status=/dev/null -o Dir::State::lists="$here/lists" -o Dir::Cache="$here"
}
of_arm apt-get update
needed=$(of_arm apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
    --no-enhances python3-minimal libpython3-stdlib libstdc++6 | grep '^[a-z]' | sort -u)
of_arm apt-get download $needed
for package in *.deb; do
    dpkg -x "$package" "$here/root"
done
[ -e "$here/root/lib" ] || ln -s usr/lib "$here/root/lib" # from Debian 13 on it is one folder
python=$(readlink "$here/root/usr/bin/python3")
# Python finds its environment by the name it was started with, and starts others by it: the script's. Signed pointers,
# which newer Debians have, are slow to emulate but for pauth-impdef.
cat > "$here/root/usr/bin/emulated" <<END
#!/bin/sh
exec $emulator -cpu max,pauth-impdef=on -L $here/root -0 "\$0" $here/root/usr/bin/$python "\$@"
END
chmod +x "$here/root/usr/bin/emulated"
