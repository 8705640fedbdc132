"""Sign pushed images and attach their package lists, with cosign: ``python docker/sign.py KEY
[TARGET...]``.

The images must be in their registry, and their lists in out/sbom (``make sbom``). Prints values for the chart
that pin each image to the signed digest. Nothing is written to a public log.

Environment:
    LOOKOUT_IMAGE_PREFIX, LOOKOUT_IMAGE_TAG: as for docker/build.py. COSIGN_PASSWORD: the key's password.
    LOOKOUT_COSIGN_OPTIONS: further options for cosign, for example ``--allow-http-registry``.
"""

import os
import re
import subprocess
import sys

from build import CPU, GPU, ROOT, image_name

SBOM = ROOT / "out" / "sbom"
#: images that install the same list as another one
SAME = {"prune-encode": "prefill", "prune-encode-gpu": "prefill-gpu"}


def cosign(command: str, *arguments: str) -> str:
    """Run cosign and return what it prints.

    Raises:
        SystemExit: It failed, or it is not installed.
    """
    options = os.environ.get("LOOKOUT_COSIGN_OPTIONS", "").split()
    try:
        done = subprocess.run(
            ["cosign", command, *options, *arguments], check=False, capture_output=True, text=True
        )
    except FileNotFoundError:
        raise SystemExit("docker/sign.py: cosign is not installed") from None
    if done.returncode:
        raise SystemExit(f"docker/sign.py: cosign {command}: {done.stderr.strip()[-1500:]}")
    return done.stdout


def digest(image: str) -> str:
    """Return the digest of an image in its registry."""
    found = re.search(r"sha256-([0-9a-f]{64})", cosign("triangulate", image))
    if found is None:
        raise SystemExit(f"docker/sign.py: cosign printed no digest for {image}")
    return f"sha256:{found.group(1)}"


def sign(target: str, key: str) -> str:
    """Sign one image and its list; return its digest."""
    name = image_name(target)
    found = digest(name)
    pinned = f"{name.rpartition(':')[0]}@{found}"
    listed = SBOM / f"{SAME.get(target, target)}.json"
    if not listed.exists():
        raise SystemExit(f"docker/sign.py: {listed} is missing: run make sbom")
    common = ("--key", key, "--tlog-upload=false", "--yes")
    cosign("sign", *common, pinned)
    cosign("attest", *common, "--type", "cyclonedx", "--predicate", str(listed), pinned)
    return found


def main() -> None:
    """Sign the named images, or all CPU images if none is named."""
    if len(sys.argv) < 2:
        raise SystemExit("usage: python docker/sign.py KEY [TARGET...]")
    key, *targets = sys.argv[1:]
    if unknown := sorted(set(targets) - {*CPU, *GPU}):
        raise SystemExit(
            f"docker/sign.py: unknown image {', '.join(unknown)}; the images are {', '.join((*CPU, *GPU))}"
        )
    print("image:\n  digests:")
    for target in targets or CPU:
        print(f"    {target}: {sign(target, key)}", flush=True)


if __name__ == "__main__":
    main()
