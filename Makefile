# The commands of this project. CMake (see CMakeLists.txt) and scripts/ do the work.
PREFIX ?= /usr/local
DESTDIR ?=
ARGS ?=
STAGES ?=
FUZZ_SECONDS ?= 600
GPU_BUILD ?=

.PHONY: all run test test-all test-gpu fuzz bench docs install wheel deb format lint lint-quick clean help

all:
	@scripts/setup build
	@scripts/build

run: all
	@echo
	@build/weir demo $(ARGS)
	@echo
	@echo 'A recorded PyTorch job ran out of memory: build/weir explain tests/data/traces/llama_oom.pickle.zst'
	@build/weir explain tests/data/traces/llama_oom.pickle.zst
	@echo
	@echo 'The same as a page: build/weir view -o build/llama_oom.html tests/data/traces/llama_oom.pickle.zst'
	@build/weir view --no-open -o build/llama_oom.html tests/data/traces/llama_oom.pickle.zst || true
	@echo
	@echo 'Next: build/weir --help lists all commands, docs/README.md all pages, and make help all targets.'

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

docs: all
	@scripts/setup docs
	@scripts/docs

install: all
	@DESTDIR='$(DESTDIR)' cmake --install build --prefix '$(PREFIX)'

wheel:
	@scripts/setup wheel
	@scripts/wheel

deb:
	@scripts/setup deb
	@scripts/build-deb

format:
	@scripts/setup lint
	@scripts/format

lint:
	@scripts/setup lint
	@scripts/lint

lint-quick:
	@scripts/lint --quick

clean:
	rm -rf build

help:
	@echo 'make           build the library, the program build/weir and the Python package build/python'
	@echo 'make run       build, run `weir demo` (with ARGS="..." as arguments), explain a recorded failure,'
	@echo '               and write a page that shows it (build/llama_oom.html)'
	@echo 'make test      build and run all tests, about 7 minutes on two cores'
	@echo '               (STAGES="lint debug asan tsan strict fuzz" selects stages)'
	@echo 'make test-all  run the long forms of the tests, fuzz longer, test the page in Chromium, build the'
	@echo '               Debian packages, and test them, `make run` and `make test` in a fresh Debian; about an hour'
	@echo 'make test-gpu  run the tests that need a GPU (GPU_BUILD=FOLDER uses test programs built on another machine)'
	@echo 'make fuzz      run each fuzzer for FUZZ_SECONDS=$(FUZZ_SECONDS) seconds'
	@echo 'make bench     build and run the benchmarks'
	@echo 'make docs      build the documentation as a site that needs no network, build/docs/index.html'
	@echo 'make install   install to PREFIX=$(PREFIX), under DESTDIR if it is set'
	@echo 'make wheel     build a wheel and a source archive of the Python package, with the program, in build/wheel'
	@echo 'make deb       build the Debian packages, in build/deb'
	@echo 'make format    format the code'
	@echo 'make lint      check the code with clang-format, check-layers, shellcheck, mypy, clang-tidy, cppcheck and a build for'
	@echo '               WebAssembly'
	@echo 'make lint-quick  only what takes seconds: format, order of folders, words, paths and functions on pages'
	@echo 'make clean     remove build/'
	@echo
	@echo 'Missing packages are installed first (as root on Debian, unless WEIR_SETUP=no is set), or listed.'
