#!/usr/bin/env bash
# Lays down .cache/triton-headers: Triton's headers of release 24.10, out of the crate that carries them, for the test that
# compares our own with them (workers/backend/tritonhost, TestHeader). Needs cargo; 0.5 MB and what the crate depends on.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$PWD/.cache/triton-headers
crate=tritonserver-rs version=0.4.1
wanted() {
  sha256sum --status -c - <<SUMS
9bd79d62ef431c110348afe6747a693b0a8490317620850795c7bb9093354c24  $1/triton/core/tritonbackend.h
62b6a437bd4908e58d17f4bf3235222e2ca497fd1e4aba470d750bc9eb977c5f  $1/triton/core/tritonserver.h
SUMS
}
if wanted "$out"; then exit 0; fi
command -v cargo >/dev/null || { echo "cargo is missing"; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '[package]\nname = "headers"\nversion = "0.0.0"\nedition = "2021"\n[lib]\npath = "lib.rs"\n[dependencies]\n%s = { version = "=%s", default-features = false }\n' \
  $crate $version >"$work/Cargo.toml"
touch "$work/lib.rs"
echo "== Triton's headers (crate $crate $version)"
(cd "$work" && CARGO_HOME=$work/home cargo vendor --quiet vendor >/dev/null)
mkdir -p "$out/triton/core"
cp "$work/vendor/$crate"/core/include/triton/core/triton{backend,server}.h "$out/triton/core/"
wanted "$out" || { echo "the headers are others than those that were pinned"; rm -rf "$out"; exit 1; }
