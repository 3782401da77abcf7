# `make demo` and `make test` do all their own set-up: a virtual environment in .venv and a build of the extension.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find csrc -name '*.cpp' -o -name '*.h') CMakeLists.txt pyproject.toml
# The editable installation lists the modules, so that one more or one fewer means another installation.
$(shell mkdir -p build; find src/featherback -name '*.py' | LC_ALL=C sort > build/modules.new; \
	cmp -s build/modules.new build/modules || cp build/modules.new build/modules)
PYTEST := $(BIN)/python -m pytest
# `make test` leaves out the cases marked `full`; this selects all (pyproject.toml, tests/support/tiers.py).
ALL := -m ""
WORKERS := -n auto --maxprocesses 4 --dist worksteal

TRL_NEEDS := accelerate==1.15.0 datasets==5.2.0 dill==0.4.1 huggingface_hub==2.4.0 multiprocess==0.70.19 \
  pandas==3.1.1 python-dateutil pytz six tzdata xxhash==4.1.0
CLIENTS := litellm==1.110.2 langchain-openai==1.7.4 instructor==1.17.0
NODE_CLIENT := openai@6.49.0

.PHONY: demo test test-all docs fuzz test-kill test-llamacpp test-mlx test-torch test-c test-flower test-authors test-clients test-embeddings test-asan test-tsan test-kernels test-arm wheel test-wheel windows test-windows lint format figures measure bench-llama stub families build clean

demo: build
	$(BIN)/featherback demo

# A few minutes. Each worker computes in one thread, so that they do not wait for each other's.
test: $(VENV)/.test
	FEATHERBACK_THREADS=1 $(PYTEST) $(WORKERS)

# Every case, in as many threads as there are cores: what continuous integration runs.
test-all: $(VENV)/.test $(VENV)/.clients
	$(PYTEST) $(WORKERS) $(ALL)
	$(MAKE) test-clients
	$(MAKE) test-c

# A hundred runs, and fifty of whole models, killed at random moments and inside writes, resumed, compared with one that
# was left alone.
test-kill: $(VENV)/.test
	FEATHERBACK_KILLS=100 $(PYTEST) $(ALL) tests/runs/test_kill.py tests/runs/test_whole.py -k killed

# Mutations of everything that is read: make fuzz CASES=2000 SEED=7 KINDS="gguf template". Seeds are printed.
fuzz: $(VENV)/.test
	$(BIN)/python -m tests.fuzz $(if $(CASES),--cases $(CASES)) $(if $(SEED),--seed $(SEED)) $(KINDS)

# Builds of their own that watch addresses and undefined behaviour, or threads, and what runs on them (Linux only).
test-asan: .venv-address/.built
	.venv-address/bin/python -m tests.sanitized address .venv-address/build

test-tsan: .venv-thread/.built
	.venv-thread/bin/python -m tests.sanitized thread .venv-thread/build

# It finds packages where $(VENV) does, except this one.
.venv-%/.built: $(VENV)/.test $(SOURCES)
	$(BIN)/python -m venv .venv-$*
	$(BIN)/python -c "import sys; print(*(path for path in sys.path if path.endswith('-packages')), sep='\n')" \
		> `.venv-$*/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))"`/shared.pth
	PATH=$(abspath $(BIN)):$$PATH .venv-$*/bin/pip install -q --no-build-isolation --no-deps -e . \
		-C build-dir=.venv-$*/build -C cmake.define.FEATHERBACK_SANITIZE=$*
	touch $@

# llama.cpp, built for this CPU, reads what we export: GGUF LoRA and merged models, logits and greedy text; and its tokens
# are ours.
test-llamacpp: $(VENV)/.test $(VENV)/.llama
	$(PYTEST) $(ALL) tests/clients/llama_cpp.py tests/clients/llama_cpp_tokens.py -s

# Optimisers against their authors' packages, objectives against TRL, and metrics against rouge-score and SciPy. They are fetched beside the environment,
# without what these ask for, except what TRL imports.
test-authors: $(VENV)/.test
	$(BIN)/pip install -q --no-deps --upgrade --target build/authors lomo-optim==0.1.1 apollo-torch==1.0.3
	$(BIN)/pip install -q --no-deps --upgrade --target build/authors trl==1.16.0 $(TRL_NEEDS)
	$(BIN)/pip install -q --upgrade --target build/metrics rouge-score==0.1.2 scipy
	$(PYTEST) $(ALL) tests/optim/authors.py tests/methods/trl.py
	PYTHONPATH=build/metrics $(PYTEST) $(ALL) tests/clients/metrics.py

# Sentence Transformers opens what we export, with our vectors, and its loss is ours.
test-embeddings: $(VENV)/.test
	$(BIN)/pip install -q --no-deps --upgrade --target build/sentence-transformers sentence-transformers==6.2.0
	$(PYTEST) $(ALL) tests/clients/sentence_transformers.py

# What people use to ask `featherback serve`. Node's client is skipped, with a note, where there is no Node.
test-clients: $(VENV)/.test build/clients/.fetched
	$(PYTEST) -rs $(ALL) tests/clients/openai_api.py

build/clients/.fetched: Makefile
	rm -rf build/clients
	$(BIN)/python -m pip install -q --target build/clients $(CLIENTS)
	if command -v npm > /dev/null; then npm install --silent --no-fund --no-audit --prefix build/clients/node $(NODE_CLIENT); fi
	touch $@

# Every case of --device on PyTorch's CPU device: gradients against autograd, memory, kernels in Triton's interpreter (if
# Triton is there), whole commands.
test-torch: $(VENV)/.test
	$(PYTEST) $(WORKERS) $(ALL) tests/methods/test_on_devices.py tests/methods/memory/test_on_card.py \
		tests/engine/backend tests/cli/test_devices.py

# libfeatherback, from the objects of the extension, against Python: bits of training runs, files that lie, the example.
test-c: $(VENV)/.test
	$(BIN)/cmake --build `ls -td build/cp* | head -1` --target featherback_program
	FEATHERBACK_LIBRARY=`ls -td build/cp*/c | head -1` FEATHERBACK_MUTATIONS=2000 \
		$(PYTEST) $(WORKERS) $(ALL) tests/exports/recording/library.py

# mlx-lm on MLX's CPU device reads what we export, and we read its bases and adapters (Linux: glibc 2.35 or later).
test-mlx: $(VENV)/.test $(VENV)/.mlx
	$(PYTEST) $(ALL) tests/clients/mlx_lm.py

# docs/federated.md, followed in fresh environments: a simulation, then a server and nodes with TLS. Then federations in
# one process, and with KILLS=5 five real ones whose nodes and server are killed (Python 3.11 or later, openssl, Linux).
test-flower: $(VENV)/.test
	$(BIN)/python -m tests.federated.walk_page
	$(PYTHON) -m venv build/flower/env
	build/flower/env/bin/pip install -q pytest pytest-xdist safetensors "`ls build/flower/wheels/*.whl`[flower]"
	build/flower/env/bin/pip install -q --force-reinstall --no-deps build/flower/wheels/*.whl
	FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FEATHERBACK_THREADS=1 FEATHERBACK_FEDERATIONS=$(or $(KILLS),1) \
		build/flower/env/bin/python -m pytest -rP -n $(or $(KILLS),1) --dist loadgroup $(ALL) \
		tests/federated/flower.py tests/federated/flower_strangers.py $(if $(KILLS),tests/federated/flower_kills.py)

# The kernels alone, in plain C++: every instruction set of this CPU, and ARM's under an emulator
# (Debian: apt-get install g++-aarch64-linux-gnu qemu-user).
test-kernels: $(VENV)/.created
	$(BIN)/cmake -G Ninja -S . -B build/kernels -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja)
	$(BIN)/cmake --build build/kernels
	build/kernels/kernel_test

test-arm: $(VENV)/.created
	$(BIN)/cmake -G Ninja -S . -B build/arm -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -DCMAKE_SYSTEM_NAME=Linux \
		-DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_EXE_LINKER_FLAGS=-static
	$(BIN)/cmake --build build/arm
	qemu-aarch64 -cpu max build/arm/kernel_test

# Wheels for Linux, x86-64 and aarch64, into dist/, and their trial where nothing can compile: WHEELS=dist/*x86_64.whl
# tries some, PYTHONS="PROGRAM ..." names interpreters. x86-64 runs aarch64's under an emulator, if it is there
# (Debian: apt-get install qemu-user).
WHEELS ?= $(wildcard dist/*.whl)
ARM_PYTHON := $(if $(filter x86_64,$(shell uname -m)),$(if $(shell command -v qemu-aarch64),\
	build/arm-python/root/usr/bin/emulated))

wheel: $(VENV)/.wheel
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/python tools/wheels.py build

test-wheel: $(VENV)/.wheel $(ARM_PYTHON)
	PYTHONS="$(PYTHONS) $(abspath $(ARM_PYTHON))" $(BIN)/python tools/wheels.py test $(WHEELS)

build/arm-python/root/usr/bin/emulated: tools/arm_python.sh
	sh tools/arm_python.sh build/arm-python

# The wheel for Windows and a zip with its own Python, into dist/, and their trial under wine: the first steps, and the tests
# that need neither torch nor POSIX (Debian: apt-get install wine wine64). AVX-512 is left out of the trial, which halves
# the compilation: make test-windows SETTINGS=FEATHERBACK_AVX512=ON tries all.
windows: SETTINGS ?= FEATHERBACK_AVX512=ON
windows: $(VENV)/.wheel
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/python -m tools.windows build $(SETTINGS)
	$(BIN)/python -m tools.windows zip

test-windows: SETTINGS ?= FEATHERBACK_AVX512=OFF
test-windows: windows
	$(BIN)/python -m tools.windows try
	$(BIN)/python -m tools.windows test

# The site of docs/, into build/site: dead links, missing anchors and every other warning end it. It fetches nothing.
docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -q -W --keep-going -b html -d build/site.cache docs build/site
	@echo "open build/site/index.html"

$(VENV)/.wheel: $(VENV)/.built
	$(BIN)/pip install -q -e ".[wheel]" --no-build-isolation
	touch $@

$(VENV)/.docs: $(VENV)/.built
	$(call install,docs)
	touch $@

$(VENV)/.lint: $(VENV)/.test
	$(call install,lint)
	touch $@

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	find csrc -name '*.cpp' -o -name '*.h' | xargs $(BIN)/clang-format --dry-run --Werror

format:
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	find csrc -name '*.cpp' -o -name '*.h' | xargs $(BIN)/clang-format -i

# Put the figures of docs/results/*.json into README, docs and pictures. Nothing is measured.
figures: $(VENV)/.test
	$(BIN)/python -m benchmarks figures

# Measure all figures again, in about 25 minutes on two idle cores: make measure PARTS="memory job" measures some.
# If it is interrupted, it goes on where it stopped.
measure: $(VENV)/.test
	$(BIN)/featherback fetch smollm2-135m
	$(BIN)/python -m benchmarks measure $(PARTS)
	$(BIN)/python -m benchmarks figures

# Measure prefill and decoding beside llama.cpp, built for this CPU without AMX: built by GCC 12 with it, it crashes in
# the first pass (docs/decisions/decoding.md).
NO_AMX := $(if $(filter x86_64,$(shell uname -m)),-mno-amx-tile -mno-amx-int8 -mno-amx-bf16)
bench-llama: $(VENV)/.llama
	$(BIN)/featherback fetch smollm2-135m
	$(BIN)/python -m benchmarks measure llama
	$(BIN)/python -m benchmarks figures

$(VENV)/.llama: $(VENV)/.built
	CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF" CFLAGS="$(NO_AMX)" CXXFLAGS="$(NO_AMX)" $(BIN)/pip install -q llama-cpp-python
	touch $@

$(VENV)/.mlx: $(VENV)/.test
	$(BIN)/pip install -q "mlx[cpu]" mlx-lm
	touch $@

# Type stubs are kept in the tree: the extension's, and the options of training, with their page. Tests compare them.
stub: build
	$(BIN)/python -m nanobind.stubgen -q -m featherback._native -o src/featherback/_native.pyi
	$(BIN)/python tools/options_stub.py > src/featherback/runs/options.pyi
	$(BIN)/python tools/options_page.py > docs/options.md

# The tables of docs/families are kept in the tree. A test compares them with what code and tests say.
families: $(VENV)/.test
	$(BIN)/python -m tools.family_pages

build: $(VENV)/.built

# Install what pyproject.toml requires for $(1). Bytecode is written when a module is first imported: that of all modules
# of torch and transformers would take longer than all other set-up.
install = $(BIN)/python tools/requirements.py $(1) > $(VENV)/$(word 1,$(1)).txt \
	&& $(BIN)/pip install -q --no-compile --no-warn-conflicts -r $(VENV)/$(word 1,$(1)).txt

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(call install,build package serve sheets)
	$(BIN)/pip install -q cmake ninja
	touch $@

# ccache, where it is installed, finds what another clone compiled.
$(VENV)/.built: $(VENV)/.created $(SOURCES) build/modules
	CCACHE_BASEDIR=$(CURDIR) CMAKE_CXX_COMPILER_LAUNCHER=$(shell command -v ccache) \
		$(BIN)/pip install -q --no-build-isolation --no-deps --no-warn-conflicts -e .
	touch $@

$(VENV)/.oracles: $(VENV)/.created pyproject.toml
	$(call install,test)
	touch $@

# The extension compiles while packages are fetched and unpacked.
$(VENV)/.test: $(VENV)/.created $(SOURCES)
	$(MAKE) --no-print-directory -j2 $(VENV)/.built $(VENV)/.oracles
	touch $@

# Programs that Featherback's users use with it. Only tests of the full tier need them (tests/clients).
$(VENV)/.clients: $(VENV)/.test pyproject.toml
	$(call install,clients)
	touch $@

clean:
	rm -rf build $(VENV) .venv-address .venv-thread
