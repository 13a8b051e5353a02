// SPDX-License-Identifier: BSD-2-Clause

// Package vm runs static programs, Go test binaries above all, as root in a
// QEMU virtual machine on kernels of Debian's that have what the machine at
// hand may lack: sch_fq and the other queueing disciplines. The processor is
// emulated, so that it works where there is no KVM; a run costs some seconds
// for the boot, and tests of several packages share one.
//
// From the shell, by the command in the directory run:
//
//	go run ./internal/vm/run -lane newest -- tc qdisc show
//	go run ./internal/vm/run -lane 6.1 -test ./pkg/qdisc -run TestVM -test ./pkg/shaper
//	go run ./internal/vm/run -virtio 4 -smp 4 -test ./pkg/qdisc
//	go run ./internal/vm/run -out results -file /prog=./prog -- /prog -json /out/result.json
//
// From Go, by [Run].
//
// # The guest
//
// The initramfs is all there is: a small init, busybox, and the host's ip, tc,
// ss, iperf3 and (where installed) ping, ethtool and bpftool. The modules for
// queueing, veth, ifb, dummy, pktgen, virtio-net and more are loaded, lo is up,
// and bpffs, tracefs, debugfs and cgroup2 are mounted in their usual places.
// Tests run in a directory that holds a copy of their package's testdata.
// CAKECTL_VM=1 is in the environment. What is left in /out goes to the host.
//
// # The host
//
// It needs root for the virtio-net devices only, and Debian's packages
// qemu-system-x86, busybox-static, iproute2, iperf3, xz-utils, zstd and
// debian-archive-keyring. Kernels come from the mirror that the machine's own
// apt uses, by a private apt that leaves the machine's alone, and are kept in
// .cache/vm. Once a day the archive is asked for a newer one; without a
// network the kept one is used.
//
// # Measurements
//
// All of the guest's CPUs take turns on one thread of the host: -smp gives
// queues and concurrency, not speed. About 1.5 Gbit/s go through a veth pair
// unshaped; keep rates at 200 Mbit/s and below, so that the shaper and not the
// emulated CPU limits.
package vm
