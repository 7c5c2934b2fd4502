"""`python -m holdfast.bench`: the same as `holdfast bench`."""

from holdfast.cli.bench import bench

if __name__ == "__main__":
    bench(prog_name="python -m holdfast.bench")
