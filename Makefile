# The commands of this project. The work itself is done by CMake (see CMakeLists.txt) and by scripts/.
PREFIX ?= /usr/local
DESTDIR ?=
ARGS ?=
STAGES ?=
FUZZ_SECONDS ?= 600
GPU_BUILD ?=

.PHONY: all run test test-all test-gpu fuzz bench install format lint clean help

all:
	@scripts/setup build
	@scripts/build

run: all
	@echo
	@build/weir demo $(ARGS)
	@echo
	@echo 'A recorded PyTorch job that ran out of memory, explained by: build/weir explain tests/data/traces/llama_oom.pickle.zst'
	@build/weir explain tests/data/traces/llama_oom.pickle.zst
	@echo
	@echo 'Next: build/weir --help for all commands, docs/README.md for all pages, make help for all targets.'

test:
	@scripts/setup test
	@scripts/test $(STAGES)

test-all:
	@scripts/setup test-all
	@scripts/test-all

test-gpu:
	@scripts/test-gpu $(GPU_BUILD)

fuzz:
	@scripts/setup fuzz
	@FUZZ_SECONDS='$(FUZZ_SECONDS)' scripts/fuzz

bench: all
	@scripts/setup bench
	@cmake --build build --target bench

install: all
	@DESTDIR='$(DESTDIR)' cmake --install build --prefix '$(PREFIX)'

format:
	@scripts/setup lint
	@scripts/format

lint:
	@scripts/setup lint
	@scripts/lint

clean:
	rm -rf build

help:
	@echo 'make           build the library, the program build/weir, and the Python package build/python'
	@echo 'make run       build, run `weir demo` (ARGS="..." are passed on), and explain a recorded failure'
	@echo 'make test      build and run all tests, in 7 minutes of two cores (STAGES="debug asan tsan strict clang fuzz": some)'
	@echo 'make test-all  the same in long forms, longer fuzzing, and both commands of the README in a fresh Debian; an hour'
	@echo 'make test-gpu  run on a real GPU what can (GPU_BUILD=FOLDER: test programs that were built elsewhere)'
	@echo 'make fuzz      run each fuzzer for FUZZ_SECONDS=$(FUZZ_SECONDS)'
	@echo 'make bench     build, and run the benchmarks'
	@echo 'make install   install to PREFIX=$(PREFIX), under DESTDIR if set'
	@echo 'make format    format the code'
	@echo 'make lint      check the code with clang-format, clang-tidy, cppcheck, shellcheck and a build for WebAssembly'
	@echo 'make clean     remove build/'
	@echo
	@echo 'What is missing on the machine is installed first (as root, on Debian), or named.'
