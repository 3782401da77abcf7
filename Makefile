# `make demo` and `make test` do all their own set-up: a virtual environment in .venv and a build of the extension.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find csrc -name '*.cpp' -o -name '*.h') CMakeLists.txt pyproject.toml

.PHONY: demo test fuzz test-kill test-asan test-tsan test-kernels test-arm lint format bench bench-llama stub build clean

demo: build
	$(BIN)/featherback demo

test: $(VENV)/.test
	$(BIN)/python -m pytest

# A hundred runs killed at random moments and inside writes, resumed, compared with one that was left alone.
test-kill: $(VENV)/.test
	FEATHERBACK_KILLS=100 $(BIN)/python -m pytest tests/training/test_kill.py

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

lint: $(VENV)/.test
	$(BIN)/pip install -q -e ".[lint]" --no-build-isolation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	find csrc -name '*.cpp' -o -name '*.h' | xargs $(BIN)/clang-format --dry-run --Werror

format:
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	find csrc -name '*.cpp' -o -name '*.h' | xargs $(BIN)/clang-format -i

bench: build
	$(BIN)/featherback bench memory

# Prefill and decoding beside llama.cpp's, built for this CPU.
bench-llama: $(VENV)/.llama
	$(BIN)/featherback fetch smollm2-135m
	$(BIN)/python benchmarks/against_llama_cpp.py

$(VENV)/.llama: $(VENV)/.built
	CMAKE_ARGS=-DGGML_NATIVE=ON $(BIN)/pip install -q llama-cpp-python
	touch $@

# The extension's type stub is kept in the tree; a test compares it with the built module.
stub: build
	$(BIN)/python -m nanobind.stubgen -q -m featherback._native -o src/featherback/_native.pyi

build: $(VENV)/.built

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/pip install -q "scikit-build-core>=0.10" "nanobind>=2.4" cmake ninja
	touch $@

$(VENV)/.built: $(VENV)/.created $(SOURCES)
	$(BIN)/pip install -q --no-build-isolation -e .
	touch $@

$(VENV)/.test: $(VENV)/.built
	$(BIN)/pip install -q -e ".[test]" --no-build-isolation
	touch $@

clean:
	rm -rf build $(VENV) .venv-address .venv-thread
