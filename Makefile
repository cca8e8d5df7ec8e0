# Everything starts here; `make` alone lists what there is. Needed: Go, a C compiler, make, git, Python 3.11+ with venv.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .cache/venv/bin/python
export PYTHON
export SLUICE_ONNXRUNTIME ?= $(CURDIR)/.cache/onnxruntime/lib/libonnxruntime.so.1.31.1
export SLUICE_ENGINES ?= $(CURDIR)/.cache/engines
# The worker's backend is C behind a tag; everything else builds without.
TAGS := -tags onnxruntime
export PYTHONDONTWRITEBYTECODE := 1

REPOSITORY ?= models
FLAGS ?=
# Of C that stands alone, the benchmarks'; scripts/peer.sh has them too.
C_WARNINGS := -std=c11 -Wall -Wextra -Werror
OURS := git ls-files -co --exclude-standard -- '*.go' ':!*.pb.go'

help: ## list what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s'|'

run: build models ## serve the demo repository: HTTP 8000, gRPC 8001, metrics 8002 (REPOSITORY=, FLAGS=)
	@echo "== bin/sluice serve --model-repository=$(REPOSITORY) $(FLAGS)"
	@exec bin/sluice serve --model-repository=$(REPOSITORY) $(FLAGS)

build: runtime headers ## bin/sluice (static) and bin/sluice-worker (cgo, ONNX Runtime beside it)
	@echo "== go build: bin/sluice, bin/sluice-worker"
	@mkdir -p bin
	@CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o bin/sluice ./cmd/sluice
	@CGO_ENABLED=1 CGO_CFLAGS="$$(scripts/cflags.sh)" go build -trimpath -ldflags='-s -w' $(TAGS) -o bin/sluice-worker ./cmd/sluice-worker
	@scripts/tritonserver.sh bin/triton/libtritonserver.so
	@ln -sfn ../.cache/onnxruntime/lib bin/lib
	@ln -sfn ../.cache/venv bin/python
	@ln -sfn ../.cache/engines bin/engines

engine-treelite: ## trees: XGBoost, LightGBM, scikit-learn and treelite models (backend fil)
	@scripts/setup.sh engine treelite

engine-openvino: ## OpenVINO's models, and TensorFlow's (backends openvino, tensorflow)
	@scripts/setup.sh engine openvino

test: ## all that CI runs: format, vet, lint, race, fuzz, clients, faults
	@scripts/test.sh

bench: build venv-test peer engine-treelite engine-openvino ## sluice, Triton and bare ONNX Runtime, side by side; Python models; engines (ARGS=--quick)
	@scripts/setup.sh venv engines
	@$(VENV) scripts/make_models.py bench .cache/bench-models
	@go build -o bin/loadgen ./bench/loadgen
	@CGO_CFLAGS="$$(scripts/cflags.sh)" go build $(TAGS) -o bin/ort ./bench/ort
	@$(VENV) bench/run.py $(ARGS)
	@$(VENV) bench/python.py $(filter --quick,$(ARGS))
	@$(VENV) bench/engines.py $(filter --quick,$(ARGS))

bench-tracing: build venv-test ## what spans cost, sampled at 0, 1 and 100 % (ARGS=--rounds 5)
	@$(VENV) scripts/make_models.py bench .cache/bench-models
	@go build -o bin/loadgen ./bench/loadgen
	@$(VENV) bench/tracing.py $(ARGS)

bench-transports: build venv-test ## our transports beside the libraries', and with --original beside the original (ARGS=--original)
	@$(if $(findstring --original,$(ARGS)),scripts/peer.sh)
	@$(VENV) scripts/make_models.py bench .cache/bench-models
	@go build -o bin/loadgen ./bench/loadgen
	@CGO_CFLAGS="$$(scripts/cflags.sh)" go build $(TAGS) -o bin/ort ./bench/ort
	@$(CC) -O2 $(C_WARNINGS) -pthread -o bin/machine bench/machine/machine.c
	@$(CC) -O2 $(C_WARNINGS) -o bin/bare bench/machine/bare.c
	@$(VENV) bench/transports.py $(ARGS)

test-pythons: build venv-test ## the runner of Python models under other interpreters (SLUICE_TEST_PYTHONS=path:path, each with numpy)
	@$(VENV) -m pytest -q -rs test/e2e/test_python_interpreters.py

soak: SECONDS ?= 600
soak: build ## honest and hostile clients on a real server, for leaks and wrong answers (SECONDS=600, ARGS=-seed=1)
	@go build -o bin/soak ./test/soak
	@bin/soak -server bin/sluice -seconds $(SECONDS) $(ARGS)

chaos: SECONDS ?= 300
chaos: build models envoy redis venv-test ## faults in a mesh, from killed gateways to full disks, under calls that are checked (SECONDS=300, ARGS=--list)
	@go build -o bin/callers ./test/callers
	@$(VENV) test/chaos/run.py --seconds $(SECONDS) $(ARGS)

fmt: ## format the Go code
	@$(OURS) | xargs -r gofmt -l -w

fmt-check:
	@echo "== gofmt"
	@bad=$$($(OURS) | xargs -r ls 2>/dev/null | xargs -r gofmt -l); [ -z "$$bad" ] || { echo "not formatted (make fmt):"; echo "$$bad"; exit 1; }

vet: headers runtime ## go vet
	@echo "== go vet"
	@CGO_CFLAGS="$$(scripts/cflags.sh)" go vet $(TAGS) ./...

lint: syntax ## layout, comments, sizes (test/arch); Python, shell and C syntax
	@echo "== lint"
	@go test -count=1 ./test/arch >/dev/null || go test -count=1 ./test/arch

syntax: headers
	@git ls-files -co --exclude-standard -- '*.py' | $(PYTHON) -c 'import ast, sys; [ast.parse(open(f).read(), f) for f in sys.stdin.read().split()]'
	@for f in $$(git ls-files -co --exclude-standard -- '*.sh') .ci/run; do bash -n "$$f"; done
	@for f in bench/*/*.c; do $(CC) $(C_WARNINGS) $$(scripts/cflags.sh) -fsyntax-only "$$f"; done
	@for f in workers/backend/tritonhost/library/*.c; do $(CC) $(C_WARNINGS) -fsyntax-only "$$f"; done
	@$(CC) $(C_WARNINGS) -Iworkers/backend/tritonhost/library -fsyntax-only workers/backend/tritonhost/testdata/probe.c

generate: venv-tools ## write the generated Go code again
	@echo "== proto/generate.sh"
	@PYTHON=$(VENV) proto/generate.sh

generate-check: venv-tools
	@echo "== generated code is up to date"
	@before=$$(cat proto/*/*.pb.go examples/workers/python/*.binpb | sha256sum); PYTHON=$(VENV) proto/generate.sh; \
	 [ "$$before" = "$$(cat proto/*/*.pb.go examples/workers/python/*.binpb | sha256sum)" ] || { echo "generated code was out of date and have been written again: commit them"; exit 1; }

clean: ## remove what was built; .cache stays
	@rm -rf bin models

runtime:
	@scripts/setup.sh runtime

models:
	@scripts/setup.sh models

venv-test:
	@scripts/setup.sh venv models test deploy

venv-tools:
	@scripts/setup.sh venv models test tools

peer:
	@scripts/peer.sh

analyzer:
	@scripts/peer.sh analyzer

triton-headers:
	@scripts/triton_headers.sh

redis:
	@scripts/setup.sh redis

jaeger:
	@scripts/setup.sh jaeger

envoy:
	@scripts/setup.sh envoy

prometheus:
	@scripts/setup.sh prometheus

interop:
	@scripts/setup.sh interop

# The C header of ONNX Runtime comes in a Go module.
headers:
	@[ -n "$$(go list -m -f '{{.Dir}}' github.com/yalue/onnxruntime_go)" ] || { echo "== Go modules"; go mod download; }

.PHONY: triton-headers help run build test bench bench-tracing bench-transports test-pythons engine-treelite engine-openvino soak fmt fmt-check vet lint generate generate-check syntax clean runtime models venv-test venv-tools peer analyzer redis jaeger envoy prometheus interop headers
