"""In place of SGLang's kernels, which are published for CUDA only: names resolve, a call fails loudly."""


def __getattr__(name: str):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_args: object, **_kwargs: object) -> None:
        raise NotImplementedError(f"sgl_kernel.{name}: there is no such kernel for the CPU")

    return missing
