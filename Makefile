# SPDX-License-Identifier: BSD-2-Clause
#
# `make help` lists the targets. All of them work from a clean clone on a Debian machine with git, make
# and Go; those that need more install it, as root.

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

GO      ?= go
PREFIX  ?= /usr/local

# The one compiler of the committed BPF objects, with the headers of Debian 12.
CLANG         := clang-19
CLANG_VERSION := 19.1.7
CLANG_FORMAT  := clang-format-19

BPF_SOURCES := $(shell git ls-files 'bpf/*.[ch]' 'lab/*.[ch]')
GO_PACKAGES := ./...

# Packages whose tests need a kernel with sch_fq, and the kernels they run on. The ones of the lab run
# on the newest only: the peers are the same everywhere.
VM_PACKAGES := ./pkg/loader ./pkg/qdisc ./pkg/shaper ./cmd/cakectl
LAB_PACKAGES := ./lab/meter ./lab/pktgen ./lab/topo ./lab/shaper ./lab/traffic ./lab/experiments ./lab/demo
VM_LANES    := newest 6.12 6.1
# What runs natively too, and has lines for kernels with fq: one such kernel is enough.
MORE_newest := |TestScripts
# Long tests that are left out where a kernel adds nothing to them: 6.12 has the hook of the newest, 6.1 another.
SKIP_6.12   := ^TestVM(TwentyTimes|FailedAttachLeavesNoTrace|CutShort|CancelledAttachLeavesNoTrace|KindsThatRoundTrip)$$
SKIP_6.1    := ^TestVM(TwentyTimes|CancelledAttachLeavesNoTrace|KindsThatRoundTrip)$$

EXP    ?= all
PEERS  ?= none,pfifo_fast,fq_codel,htb,htb+fq_codel,cake,cake_mq,edt,cakectl
RATES  ?= 40mbit,200mbit
QUEUES ?= 32
REPEAT ?= 3

##@ Use

.PHONY: help
help: ## show this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/cakectl; needs Go only
	CGO_ENABLED=0 $(GO) build -buildvcs=auto -trimpath -o bin/cakectl ./cmd/cakectl

.PHONY: install
install: build ## install the program, its unit, manual pages and examples under PREFIX (/usr/local)
	install -D -m 0755 bin/cakectl $(DESTDIR)$(PREFIX)/sbin/cakectl
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system $(DESTDIR)$(PREFIX)/share/man/man5 $(DESTDIR)$(PREFIX)/share/man/man8 $(DESTDIR)$(PREFIX)/share/cakectl
	sed 's|/usr/local/sbin/|$(PREFIX)/sbin/|' deploy/cakectl.service > $(DESTDIR)$(PREFIX)/lib/systemd/system/cakectl.service
	install -m 0644 docs/man/*.5 $(DESTDIR)$(PREFIX)/share/man/man5
	install -m 0644 docs/man/*.8 $(DESTDIR)$(PREFIX)/share/man/man8
	install -m 0644 deploy/cakectl.yaml deploy/alerts.yaml deploy/grafana.json deploy/kubernetes.yaml $(DESTDIR)$(PREFIX)/share/cakectl

.PHONY: demo
demo: setup-run ## shape real traffic and show it, in a VM where this kernel has no sch_fq
	@echo 'building the demo (the first time, that takes a minute or two) ...'
	@$(GO) run ./lab/demo

##@ Test

.PHONY: test
test: setup-build lint check-generated test-native test-vm ## everything: checks, unit and kernel tests, VM tests

.PHONY: test-native
test-native: ## unit tests, and kernel tests on this machine (as root, in namespaces of their own)
	$(GO) test -shuffle=on -count=1 $(GO_PACKAGES)
	$(GO) test -count=1 -v -run '^TestLoadVerifierTable$$' ./pkg/loader

.PHONY: test-race
test-race: ## the same under the race detector
	$(GO) test -race -shuffle=on -count=1 $(GO_PACKAGES)

.PHONY: test-vm
test-vm: $(VM_LANES:%=test-vm-%) test-icount test-lab test-virtio ## tests of real pacing on Debian's kernels, in QEMU

.PHONY: $(VM_LANES:%=test-vm-%)
$(VM_LANES:%=test-vm-%): test-vm-%: setup-run
	$(GO) run ./internal/vm/run -lane $* -smp 2 -timeout 25m $(VM_PACKAGES:%=-test %) -run '^(TestVM|TestLoad|TestQueueIsForeseen|TestDetachLeaves|TestAdopt|TestFramedAsOnTheWire|TestTakeOver$(MORE_$*))' $(if $(SKIP_$*),-- -test.skip '$(SKIP_$*)')

.PHONY: test-icount
test-icount: setup-run ## what needs a clock that no busy host disturbs (it counts instructions), in QEMU
	$(GO) run ./internal/vm/run -lane newest -icount -timeout 10m -test ./cmd/cakectl -test ./pkg/shaper -run '^(TestSteadyState|TestFramedRate|TestSoak|TestHostsShare|TestDetachIsNoticed)'

VERIFIER_TABLE := pkg/loader/testdata/verifier

.PHONY: verifier-table
verifier-table: setup-run ## write the table of what the verifier says, on all kernels (every test lane compares with it)
	$(GO) test -count=1 -run '^TestLoadVerifierTable$$' ./pkg/loader -verifier $(CURDIR)/$(VERIFIER_TABLE)
	@for lane in $(VM_LANES); do $(GO) run ./internal/vm/run -lane $$lane -out $(VERIFIER_TABLE) -test ./pkg/loader -run '^TestLoadVerifierTable$$' -- -verifier /out; done
	@cat $(VERIFIER_TABLE)/*

.PHONY: soak
soak: setup-run ## 10 minutes of mixed traffic under a bandwidth that changes all the time, in QEMU
	$(GO) run ./internal/vm/run -lane newest -icount -timeout 3h -test ./pkg/shaper -run '^TestSoak' -- -soak 10m

.PHONY: test-many
test-many: setup-run ## one daemon with 64 devices of 64 queues each, in QEMU; many minutes
	$(GO) run ./internal/vm/run -lane newest -memory 6144 -timeout 60m -test ./cmd/cakectl -run '^TestManyDevices$$'

.PHONY: test-lab
test-lab: setup-run ## tests of the lab's own instruments, in QEMU
	$(GO) run ./internal/vm/run -lane newest -timeout 15m $(LAB_PACKAGES:%=-test %)

.PHONY: test-virtio
test-virtio: setup-run ## attach, restore and queue foresight on a real multi-queue driver (virtio-net, 4 queues), in QEMU
	$(GO) run ./internal/vm/run -lane newest -smp 4 -virtio 4 -timeout 10m -test ./pkg/qdisc -test ./pkg/loader -test ./lab/topo -run Virtio

.PHONY: fuzz
fuzz: ## fuzz the parsers for a minute
	$(GO) test -fuzz=. -fuzztime=60s ./pkg/rates

.PHONY: bench
bench: lab ## the same as lab

.PHONY: bench-controller
bench-controller: ## time from a packet's event to the rates written, over 10,000 of them while all CPUs are busy (as root)
	$(GO) test ./pkg/control -run '^$$' -bench ReactionOnBusyCPUs -benchtime 10000x

.PHONY: bench-cpus
bench-cpus: ## what a packet costs when two CPUs send through one data path (as root, on this machine)
	$(GO) test -count=1 -run '^$$' -bench CPUs -benchtime 21x ./pkg/loader

.PHONY: lab
lab: setup-run ## measure shapers side by side (EXP=all PEERS=... RATES=... QUEUES=32 REPEAT=3); makes lab/report/index.html
	$(GO) run ./lab -exp $(EXP) -peers $(PEERS) -rates $(RATES) -queues $(QUEUES) -repeat $(REPEAT) -brief -duration 2s -report lab/report

.PHONY: lint
lint: ## formatting, vet, staticcheck
	@unformatted=$$(git ls-files '*.go' | xargs gofmt -l); [ -z "$$unformatted" ] || { echo "not gofmt'ed: $$unformatted"; exit 1; }
	$(GO) vet $(GO_PACKAGES)
	$(GO) tool staticcheck $(GO_PACKAGES)
	$(CLANG_FORMAT) --dry-run --Werror $(BPF_SOURCES)

##@ Data path

.PHONY: generate
generate: check-clang ## build the BPF objects and their Go side
	BPF2GO_CFLAGS="-I/usr/include/$$(gcc -print-multiarch)" $(GO) generate ./...

.PHONY: check-generated
check-generated: generate ## fail when the committed BPF objects do not match their source
	@git diff --exit-code --stat -- '*_bpfel.go' '*_bpfel.o' || { echo 'the committed BPF objects do not match their source: make generate, and commit them'; exit 1; }

.PHONY: check-clang
check-clang:
	@$(CLANG) --version | grep -q 'clang version $(CLANG_VERSION)' || { echo 'need $(CLANG) $(CLANG_VERSION), the one compiler of the committed objects (make setup-build, on Debian 12)'; exit 1; }

.PHONY: format
format: ## format all sources
	git ls-files '*.go' | xargs gofmt -w
	$(CLANG_FORMAT) -i $(BPF_SOURCES)

##@ Machine

.PHONY: setup-run
setup-run: ## install what running VMs and the demo takes
	@scripts/setup run

.PHONY: setup-build
setup-build: ## install what building and checking the BPF objects takes
	@scripts/setup build

.PHONY: clean
clean: ## remove what was built, and the kernels that were fetched
	rm -rf bin .cache lab/report
