"""Run other engines' placement algorithms, as published, on problems A to E.

    python3 tools/plan_peers.py --install target/peers      # once: a venv with NumPy, torch, policies
    target/peers/bin/python tools/plan_peers.py --problems assets/plan-problems > peers.json
    evenkeel bench plan-peers --peers-json peers.json       # or: evenkeel bench plan-peers --peers

Installed are NumPy and torch, and from the wheels `vllm` and `sglang` (Apache-2.0 both, without
their dependencies) only the files of their placement algorithms; nothing is copied into this
repository. The output holds every map and the median CPU time of a whole model's plan
(`process_time`, one thread); maps are scored by `evenkeel bench plan-peers`, all by one scorer.

Output: {"versions": {package: version}, "maps": [{"peer", "problem", "first" [layer][slot],
"second" [layer][slot] after drift or null, "cpu_ms" or null, "error" or null}]}.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time
import zipfile

# Package -> the files of its wheel that are the algorithm.
POLICIES = {
    "vllm": ["vllm/distributed/eplb/policy/abstract.py", "vllm/distributed/eplb/policy/default.py"],
    "sglang": ["sglang/srt/eplb/__init__.py"]
    + [
        f"sglang/srt/eplb/eplb_algorithms/{name}.py"
        for name in ("__init__", "deepseek", "deepseek_vec", "elasticity_aware")
    ],
}

# Problems whose second plan, after drift, is asked for as well.
DRIFT = "_drift15"


def install(target: pathlib.Path) -> None:
    """Make a virtual environment with NumPy and torch, and the policy files beside it."""
    subprocess.run([sys.executable, "-m", "venv", target], check=True)
    python = target / "bin" / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "install", "numpy", "torch"], check=True)
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    wheels = target / "wheels"
    for package, files in POLICIES.items():
        subprocess.run([*pip, "download", package, "--no-deps", "-d", wheels], check=True)
        wheel = max(wheels.glob(f"{package}-*.whl"), key=lambda path: path.stat().st_mtime)
        with zipfile.ZipFile(wheel) as archive:
            for name in files:
                archive.extract(name, site)
        version = wheel.name.split("-")[1]
        (pathlib.Path(site) / f"plan_peers_{package}.version").write_text(version)
        wheel.unlink()


def peers():
    """Name -> plan(loads tensor, problem, old map or None) -> map tensor [layer][slot]."""
    import torch
    from sglang.srt.eplb.eplb_algorithms import EplbAlgorithm, rebalance_experts
    from vllm.distributed.eplb.policy.default import DefaultEplbPolicy

    def vllm(groups):
        def plan(loads, problem, old):
            shape = groups(problem)
            old = None if old is None else torch.as_tensor(old)
            ranks = problem["ranks"]
            return DefaultEplbPolicy.rebalance_experts(loads, problem["slots"], *shape, ranks, old)

        return plan

    def sglang(algorithm):
        def plan(loads, problem, _old):
            return rebalance_experts(
                loads[None],
                problem["slots"],
                problem["slots"] // problem["ranks"],
                problem["groups"],
                problem["nodes"],
                EplbAlgorithm[algorithm],
            )[0]

        return plan

    return {
        "vLLM default global": vllm(lambda problem: (1, 1)),
        "vLLM default as called": vllm(lambda problem: (problem["groups"], problem["nodes"])),
        "SGLang deepseek": sglang("deepseek"),
        "SGLang deepseek_hierarchical": sglang("deepseek_hierarchical"),
        "SGLang deepseek_vec": sglang("deepseek_vec"),
    }


def timed(work, runs):
    """What `work` returns, and the median of its CPU times in ms; one more run warms up."""
    result = work()
    times = []
    for _ in range(runs):
        start = time.process_time()
        result = work()
        times.append((time.process_time() - start) * 1e3)
    return result, statistics.median(times)


def measure(folder: pathlib.Path, runs: int) -> dict:
    """Every peer on every problem."""
    import numpy
    import torch

    torch.set_num_threads(1)
    problems = json.loads((folder / "problems.json").read_text())
    loads = numpy.load(folder / "problems.npz")
    maps = []
    for peer, plan in peers().items():
        for name, problem in sorted(problems.items()):
            print(f"{peer}, {name}", file=sys.stderr)
            entry = {"peer": peer, "problem": name, "first": [], "second": None}
            try:
                weight = torch.from_numpy(loads[name].astype("float32"))
                first, cpu_ms = timed(lambda: plan(weight, problem, None), runs)
                entry |= {"first": first.tolist(), "cpu_ms": cpu_ms}
                if name + DRIFT in loads:
                    drifted = torch.from_numpy(loads[name + DRIFT].astype("float32"))
                    entry["second"] = plan(drifted, problem, first).tolist()
            except Exception as error:  # noqa: BLE001: whatever a peer raises is its result
                entry["error"] = f"{type(error).__name__}: {error}".strip(": ")
            maps.append(entry)
    versions = {"python": sys.version.split()[0], "numpy": numpy.__version__, "torch": torch.__version__}
    for package in POLICIES:
        import sysconfig

        path = pathlib.Path(sysconfig.get_path("purelib")) / f"plan_peers_{package}.version"
        versions[package] = path.read_text().strip() if path.exists() else "unknown"
    return {"versions": versions, "maps": maps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--install", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--problems", type=pathlib.Path, default=pathlib.Path("assets/plan-problems"))
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.install:
        install(arguments.install)
        return
    json.dump(measure(arguments.problems, arguments.runs), sys.stdout)


if __name__ == "__main__":
    main()
